/* The usual subset of LaTeX to MathML; anything else is null, to be shown as its source. */

import { COMMANDS, Unknown, operator, spaced, upright, withScripts } from './commands.js';
import { TIGHT, mathEl as m } from './dom.js';
import { BARE_FUNCTIONS, BIG, FENCES, LETTERS, OPERATORS, SPACES } from './signs.js';

const MAX_CHARS = 2000;
const MAX_DEPTH = 30;

/* A <math> element, or null where the source holds something that is not known here. */
export function renderMath(source, isDisplay = false) {
  if (source.length > MAX_CHARS) return null;
  const parser = new Parser(source, 0);
  try {
    const row = parser.row(() => parser.at >= source.length);
    return wrapped([row], source, isDisplay);
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

/* A command with its arguments and indices at a place of a text: {element, end}, or null. */
export function renderCommand(text, start) {
  const parser = new Parser(text.slice(start, start + MAX_CHARS), 0);
  try {
    const atom = parser.scripted();
    if (!atom || atom.localName === 'mspace') return null;
    // Looking for an index went over the space behind it.
    const source = parser.source.slice(0, parser.at).trimEnd();
    return { element: wrapped([atom], source, false), end: start + source.length };
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

function wrapped(children, source, isDisplay) {
  return m('math', { display: isDisplay ? 'block' : 'inline', 'aria-label': source }, ...children);
}

class Parser {
  constructor(source, depth) {
    this.source = source;
    this.at = 0;
    this.depth = depth;
  }

  row(isEnd) {
    if (++this.depth > MAX_DEPTH) throw new Unknown();
    const found = [];
    for (this.skip(); !isEnd(); this.skip()) {
      if (this.at >= this.source.length) throw new Unknown();
      const atom = this.scripted();
      if (atom) found.push(atom);
    }
    this.depth -= 1;
    return m('mrow', {}, ...spaced(found));
  }

  /* One thing with what stands above and below it. */
  scripted() {
    const isBig = this.isBig();
    const base = this.atom();
    let above = null;
    let below = null;
    let primes = '';
    for (this.skip(); ; this.skip()) {
      const mark = this.source[this.at];
      if (mark === "'") {
        this.at += 1;
        primes += '\u2032';
      } else if (mark === '^' || mark === '_') {
        this.at += 1;
        const script = this.argument();
        if (mark === '^' ? above : below) throw new Unknown();
        if (mark === '^') above = script;
        else below = script;
      } else break;
    }
    let scripted = base;
    if (above || below) scripted = withScripts(base ?? m('mrow'), above, below, isBig);
    // As a superscript a prime, which stands high already, would float.
    if (primes) scripted = m('mrow', {}, scripted, m('mo', TIGHT, primes));
    if (base?.dataset.word !== undefined) scripted.dataset.word = '';
    return scripted;
  }

  isBig() {
    const command = /^\\([A-Za-z]+)/.exec(this.source.slice(this.at, this.at + 12));
    return command !== null && (command[1] === 'lim' || BIG[command[1]] !== undefined
      && command[1] !== 'int');
  }

  /* Null for what takes no room: \displaystyle, a script without a base. */
  atom() {
    const char = this.source[this.at];
    if (char === undefined) throw new Unknown();
    if (char === '\\') return this.command();
    if (char === '{') return this.group();
    if (char === '^' || char === '_' || char === "'") return null;
    if ('}&$#'.includes(char)) throw new Unknown();
    const number = /^(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|^\.\d+/.exec(
      this.source.slice(this.at, this.at + 64));
    if (number) {
      this.at += number[0].length;
      return m('mn', {}, number[0]);
    }
    const symbol = String.fromCodePoint(this.source.codePointAt(this.at));
    this.at += symbol.length;
    if (symbol === '~') return m('mspace', { width: '.33em' });
    if (/^[A-Za-z\u0370-\u03ff]$/.test(symbol)) return m('mi', {}, symbol);
    if (/^\p{L}$/u.test(symbol)) return m('mtext', {}, symbol);
    return operator(symbol);
  }

  group() {
    this.at += 1;
    const row = this.row(() => this.source[this.at] === '}');
    this.at += 1;
    return row.childNodes.length === 1 ? row.firstChild : row;
  }

  /* What a command or an index takes: a group, or one sign. */
  argument() {
    this.skip();
    const char = this.source[this.at];
    if (char === undefined || '^_}'.includes(char)) throw new Unknown();
    if (/\d/.test(char)) {
      this.at += 1;
      return m('mn', {}, char);
    }
    if (++this.depth > MAX_DEPTH) throw new Unknown();
    const atom = this.atom() ?? m('mrow');
    this.depth -= 1;
    return atom;
  }

  command() {
    const match = /^\\(?:([A-Za-z]+)\*?|([^A-Za-z]))/.exec(this.source.slice(this.at, this.at + 40));
    if (!match) throw new Unknown();
    this.at += match[0].length;
    const name = match[1] ?? match[2];
    if (Object.hasOwn(LETTERS, name)) return m('mi', upright(LETTERS[name]), LETTERS[name]);
    if (Object.hasOwn(OPERATORS, name)) return operator(OPERATORS[name]);
    if (Object.hasOwn(BIG, name)) return m('mo', { movablelimits: 'true' }, BIG[name]);
    if (Object.hasOwn(SPACES, name)) return m('mspace', { width: SPACES[name] });
    if (BARE_FUNCTIONS.has(name)) return m('mi', { mathvariant: 'normal', 'data-word': true }, name);
    if (!Object.hasOwn(COMMANDS, name)) throw new Unknown();
    return COMMANDS[name].call(this);
  }

  /* The raw text between braces. */
  braced() {
    this.skip();
    if (this.source[this.at] !== '{') throw new Unknown();
    let depth = 0;
    for (let end = this.at; end < this.source.length; end++) {
      const char = this.source[end];
      if (char === '\\') end += 1;
      else if (char === '{') depth += 1;
      else if (char === '}' && --depth === 0) {
        const text = this.source.slice(this.at + 1, end);
        this.at = end + 1;
        return text;
      }
    }
    throw new Unknown();
  }

  fence() {
    this.skip();
    const match = /^(?:\\[A-Za-z]+|\\.|[^\\])/s.exec(this.source.slice(this.at, this.at + 16));
    if (!match || !Object.hasOwn(FENCES, match[0])) throw new Unknown();
    this.at += match[0].length;
    return FENCES[match[0]];
  }

  skip() {
    while (/\s/.test(this.source[this.at] ?? '')) this.at += 1;
  }
}
