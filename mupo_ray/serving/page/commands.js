/* What each command makes of its arguments; `this` is the parser that has just read its name. */

import { TIGHT, mathEl as m } from './dom.js';
import { DOUBLE_STRUCK } from './signs.js';

export class Unknown extends Error {}

/* A thing with what stands above and below it. */
export function withScripts(nucleus, above, below, isBig) {
  if (above && !below && above.textContent === '\u2218') {
    return m('mrow', {}, nucleus, m('mo', TIGHT, '\u00b0'));
  }
  const [both, top, bottom] = isBig
    ? ['munderover', 'mover', 'munder']
    : ['msubsup', 'msup', 'msub'];
  if (above && below) return m(both, {}, nucleus, below, above);
  return above ? m(top, {}, nucleus, above) : m(bottom, {}, nucleus, below);
}

/* Signs of numbers close up to them; names of functions keep off what is beside them. */
export function spaced(nodes) {
  const found = [];
  for (const node of nodes) {
    const before = found.at(-1);
    const isAfterOperator = !before
      || (before.localName === 'mo' && before.dataset.shut === undefined);
    if (isAfterOperator && node.localName === 'mo' && /^[\u2212+\u00b1\u2213]$/.test(node.textContent)) {
      node.setAttribute('form', 'prefix');
    }
    const isBesideWord = before?.dataset.word !== undefined || node.dataset.word !== undefined;
    if (isBesideWord && !isAfterOperator && node.localName !== 'mo') {
      found.push(m('mspace', { width: '.17em' }));
    }
    found.push(node);
  }
  return found;
}

function text() {
  const inside = this.braced().replace(/\\([ %$&#_{}])/g, '$1');
  if (/[\\$]/.test(inside)) throw new Unknown();
  return m('mtext', {}, inside.replace(/^\s|\s$/g, '\u00a0'));
}

function letters(settings) {
  return function roman() {
    const inside = this.braced();
    if (!/^[\w .,%\u00b0/-]*$/.test(inside)) throw new Unknown();
    return /^\d/.test(inside) ? m('mn', settings, inside) : m('mi', settings, inside);
  };
}

function fraction() {
  return m('mfrac', {}, this.argument(), this.argument());
}

function over(sign) {
  return function accent() {
    return m('mover', { accent: 'true' }, this.argument(), m('mo', { stretchy: 'true' }, sign));
  };
}

/* Fonts without a table for mathematics have no sign that stretches so far. */
function line() {
  return m('mrow', { class: 'lined' }, this.argument());
}

function nothing() {
  return null;
}

/* A size is left to the browser: the fence itself follows. */
function sized() {
  const sign = this.fence();
  return sign === '' ? null : m('mo', { stretchy: 'false' }, sign);
}

export const COMMANDS = {
  frac: fraction, dfrac: fraction, tfrac: fraction, cfrac: fraction,
  sqrt() {
    this.skip();
    if (this.source[this.at] !== '[') return m('msqrt', {}, this.argument());
    this.at += 1;
    const degree = this.row(() => this.source[this.at] === ']');
    this.at += 1;
    return m('mroot', {}, this.argument(), degree);
  },
  binom() {
    const pair = m('mfrac', { linethickness: '0' }, this.argument(), this.argument());
    return m('mrow', {}, m('mo', {}, '('), pair, m('mo', {}, ')'));
  },
  boxed() {
    return m('mrow', { class: 'boxed' }, this.argument());
  },
  left() {
    const open = this.fence();
    const inside = this.row(() => this.source.startsWith('\\right', this.at)
      && !/[A-Za-z]/.test(this.source[this.at + 6] ?? ''));
    this.at += 6;
    const shut = this.fence();
    return m('mrow', {}, open && m('mo', {}, open), inside, shut && m('mo', {}, shut));
  },
  big: sized, Big: sized, bigl: sized, bigr: sized, Bigl: sized, Bigr: sized,
  text, textrm: text, mbox: text, textit: text, textbf: text,
  mathrm: letters({ mathvariant: 'normal' }), operatorname: letters({ mathvariant: 'normal' }),
  mathit: letters({}), mathbf: letters({ class: 'bold', mathvariant: 'normal' }),
  mathbb() {
    const letter = this.braced().trim();
    if (!Object.hasOwn(DOUBLE_STRUCK, letter)) throw new Unknown();
    return m('mi', { mathvariant: 'normal' }, DOUBLE_STRUCK[letter]);
  },
  overline: line, bar: line, vec: over('\u2192'), hat: over('^'),
  widehat: over('^'), overrightarrow: over('\u2192'), dot: over('\u02d9'), tilde: over('~'),
  displaystyle: nothing, textstyle: nothing, limits: nothing, nolimits: nothing,
};

/* Greek capitals stand upright, as in print. */
export function upright(letter) {
  return /^[\u0391-\u03a9\u221e\u2205]$/.test(letter) ? { mathvariant: 'normal' } : {};
}

export function operator(sign) {
  const shown = { '-': '\u2212', '*': '\u2217' }[sign] ?? sign;
  const node = m('mo', '()[]{}|/'.includes(shown) ? { stretchy: 'false' } : {}, shown);
  if (/^[)\]}!%\u00b0|]$/.test(shown)) node.dataset.shut = '';
  if (shown === '|') {
    node.setAttribute('lspace', '.1em');
    node.setAttribute('rspace', '.1em');
  }
  return node;
}
