/* LaTeX to MathML, by Temml; what it cannot set is null, to be shown as its source. */

const MAX_CHARS = 2000;
const MAX_DEPTH = 60;
const MAX_ARGUMENTS = 3;
// Macros could grow without bound, references point out of the formula.
const REFUSED = /\\(?:[egx]?def|let|futurelet|(?:re)?newcommand|providecommand|(?:eq)?ref)(?![A-Za-z])/;
// Temml sets these only as formulas that have a line of their own.
const LINES = /\\begin\s*\{(?:align|alignat|gather|equation|multline)\*?\}/;

/* A <math> element, or null where the source holds something that is not known. */
export function renderMath(source, isDisplay = false) {
  if (source.length > MAX_CHARS || REFUSED.test(source)) return null;
  const box = document.createElement('span');
  try {
    temml.render(asMeant(source), box, {
      displayMode: isDisplay || LINES.test(source),
      maxSize: [10, 100],
      throwOnError: true,
      trust: distrust,
    });
  } catch {
    // Temml has errors of its own for most broken formulas, and trips over the others.
    return null;
  }
  const math = box.firstElementChild;
  if (math?.localName !== 'math' || !math.textContent.trim() || depth(math) > MAX_DEPTH) return null;
  math.setAttribute('aria-label', source);
  return math;
}

/* A model's `50%` begins no comment, and fonts have a sign for degrees that stands right. */
function asMeant(source) {
  return source.replace(/\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))/g, '\u00b0')
    .replace(/\\[^]|%/g, sign => (sign === '%' ? '\\%' : sign));
}

/* Temml asks before it sets what loads, links or brings attributes of its own. */
function distrust() {
  throw new Error('not trusted');
}

function depth(node) {
  return 1 + Math.max(0, ...[...node.children].map(depth));
}

/* A command with its arguments and indices at a place of a text: {element, end}, or null. */
export function renderCommand(text, start) {
  const near = text.slice(start, start + MAX_CHARS);
  let end = /^\\(?:begin|left)(?![A-Za-z])/.test(near)
    ? closingEnd(near)
    : /^\\[A-Za-z]+/.exec(near)[0].length;
  let element = renderMath(near.slice(0, end));
  for (let count = 0; !element && count < MAX_ARGUMENTS; count++) {
    end = pieceEnd(near, end, /^(?:\s*\[[^\]]*\]|\d|\\[A-Za-z]+)/);
    element = renderMath(near.slice(0, end));
  }
  if (!element) return null;
  for (let mark = null; (mark = /^\s*[_^]\s*/.exec(near.slice(end))); ) {
    const further = pieceEnd(near, end + mark[0].length, /^(?:\\[A-Za-z]+|[^\s{}\\])/);
    const scripted = renderMath(near.slice(0, further));
    if (!scripted) break;
    [element, end] = [scripted, further];
  }
  return { element, end: start + end };
}

/* Behind the group or the sign at a place; at the place itself where neither is there. */
function pieceEnd(source, at, signs) {
  const rest = source.slice(at);
  const sign = signs.exec(rest);
  if (sign) return at + sign[0].length;
  return /^\s*\{/.test(rest) ? at + closingEnd(rest) : at;
}

const MARKS = /\\end\s*\{\w+\*?\}|\\right(?![A-Za-z])\s*(?:\\(?:[A-Za-z]+|.)|.)|\\(?:[A-Za-z]+|[^])|[{}]/g;

/* Behind what closes the group, environment or pair of fences that a source begins with, or 0. */
function closingEnd(source) {
  let numOpen = 0;
  for (const { 0: mark, index } of source.matchAll(MARKS)) {
    if (/^(?:\{|\\begin$|\\left$)/.test(mark)) numOpen += 1;
    if (/^(?:\}|\\end\s*\{|\\right(?![A-Za-z]))/.test(mark)) numOpen -= 1;
    if (numOpen <= 0) return index + mark.length;
  }
  return 0;
}
