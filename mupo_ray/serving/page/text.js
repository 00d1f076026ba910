/* A model's text: its reasoning, what stands behind it, and the mathematics in either. */

import { el } from './dom.js';
import { renderCommand, renderMath } from './math.js';

const MAX_FORMULA = 2000;
// A text of so many beginnings that lead to nothing is no mathematics, and each takes its time.
const MAX_FAILURES = 500;
const CLOSE = /<\s*\/\s*think\s*>/g;
const TAGS = /<\s*\/?\s*(?:think|answer)\s*>/g;

/* {reasoning, rest}: all is reasoning where it never closes. */
export function parts(text) {
  const closes = [...text.matchAll(CLOSE)];
  const last = closes.at(-1);
  const [reasoning, rest] = last
    ? [text.slice(0, last.index), text.slice(last.index + last[0].length)]
    : [text, ''];
  return { reasoning: reasoning.replace(TAGS, '').trim(), rest: rest.replace(TAGS, '').trim() };
}

export function firstLine(text) {
  const { reasoning, rest } = parts(text);
  const line = (reasoning || rest).split('\n').find(words => words.trim()) ?? '';
  return line.trim().slice(0, 300);
}

const DELIMITERS = { $$: '$$', $: '$', '\\(': '\\)', '\\[': '\\]' };
const STARTS = /\$\$?|\\[([]|\d+(?:\.\d+)? ?\^ ?(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\[A-Za-z]{2,}/g;

/* The text with its formulas set; what cannot be set stays as it is written. */
export function rendered(text) {
  const content = document.createDocumentFragment();
  let done = 0;
  let numFailures = 0;
  const put = (from, node, end) => {
    const before = text.slice(done, from);
    // A displayed formula has a line of its own; the text's breaks beside it would be more.
    const isDisplay = node.getAttribute('display') === 'block';
    content.append(isDisplay ? before.replace(/\n[ \t]*$/, '') : before, node);
    done = STARTS.lastIndex = isDisplay && text[end] === '\n' ? end + 1 : end;
  };
  STARTS.lastIndex = 0;
  for (let match = STARTS.exec(text); match; match = STARTS.exec(text)) {
    if (numFailures > MAX_FAILURES) break;
    const [mark] = match;
    const from = match.index;
    if (mark in DELIMITERS) {
      const end = formulaEnd(text, from + mark.length, mark);
      if (end === null) {
        numFailures += 1;
        continue;
      }
      const source = text.slice(from + mark.length, end);
      const isDisplay = mark === '$$' || mark === '\\[';
      const stop = end + DELIMITERS[mark].length;
      put(from, renderMath(source, isDisplay) ?? asWritten(text.slice(from, stop)), stop);
    } else if (mark.startsWith('\\')) {
      const command = renderCommand(text, from);
      if (command) put(from, command.element, command.end);
      else numFailures += 1;
    } else {
      put(from, renderMath(mark), from + mark.length);
    }
  }
  content.append(text.slice(done));
  return content;
}

/* Null where none begins here. A lone dollar is money: `$5 and $7` holds no formula. */
function formulaEnd(text, start, mark) {
  const near = text.slice(start, start + MAX_FORMULA);
  const close = DELIMITERS[mark];
  let at = near.indexOf(close);
  while (at > 0 && close.startsWith('$') && near[at - 1] === '\\') at = near.indexOf(close, at + 1);
  const inside = near.slice(0, Math.max(at, 0));
  if (!inside.trim() || inside.includes('\n\n')) return null;
  const isMoney = /^\s|\s$/.test(inside) || /\d/.test(near[at + 1] ?? '');
  return mark === '$' && isMoney ? null : start + at;
}

/* What an answer's box holds, which needs no dollars around it. */
export function renderedAnswer(answer) {
  if (answer.includes('$')) return rendered(answer);
  const isFormula = /[\\^_]/.test(answer)
    || (!/[^\W\d_]{2}/u.test(answer) && !/^\(?[A-J]\)?\.?$/.test(answer) && /^[ -~]*$/.test(answer));
  if (/^-?[\d.,]+$/.test(answer)) return document.createTextNode(answer.replace('-', '\u2212'));
  if (!isFormula) return document.createTextNode(answer);
  return renderMath(answer) ?? asWritten(answer);
}

function asWritten(source) {
  return el('code', { class: 'tex' }, source);
}
