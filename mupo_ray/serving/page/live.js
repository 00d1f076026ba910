/* Answers while they arrive. */

import { el } from './dom.js';
import { parts, rendered, renderedAnswer } from './text.js';

const TAIL_CHARS = 400;

export class Live {
  constructor(count) {
    this.responses = new Map();
    this.cards = Array.from({ length: count }, (_, index) => {
      const answer = el('span', { class: 'answer' });
      const text = el('span', {});
      const item = el('li', {}, el('h3', {}, `Answer ${index + 1}`, answer), el('p', {}, text));
      return { item, answer, text };
    });
    this.element = el('ol', { class: 'live' }, ...this.cards.map(card => card.item));
    this.changed = new Set();
  }

  get numDone() {
    return [...this.responses.values()].filter(response => response.isDone).length;
  }

  /* What has arrived, complete or not, in order. */
  get arrived() {
    return [...this.responses.values()].sort((a, b) => a.index - b.index);
  }

  delta({ index, text }) {
    const before = this.responses.get(index)?.text ?? '';
    this.responses.set(index, { index, text: before + text, extracted: null, isDone: false });
    if (!this.changed.size) requestAnimationFrame(() => this.draw());
    this.changed.add(index);
  }

  complete(message) {
    const { index, text, extracted } = message;
    this.responses.set(index, { ...message, isDone: true });
    this.changed.delete(index);
    const card = this.cards[index];
    if (!card) return;
    card.item.classList.add('done');
    card.answer.replaceChildren(answerOf(extracted));
    card.text.replaceChildren(rendered(parts(text).reasoning));
  }

  draw() {
    for (const index of this.changed) {
      const card = this.cards[index];
      const { reasoning, rest } = parts(this.responses.get(index).text);
      if (card) card.text.textContent = (rest || reasoning).slice(-TAIL_CHARS);
    }
    this.changed.clear();
  }
}

export function answerOf(extracted) {
  if (extracted === null || extracted === undefined) {
    return el('span', { class: 'none' }, 'no answer');
  }
  return renderedAnswer(extracted);
}
