/* The votes, and the groups of reasoning with every answer in them. */

import { el, plural } from './dom.js';
import { answerOf } from './live.js';
import { firstLine, parts, rendered } from './text.js';

const NUM_COLOURS = 6;
const LONG_ANSWER = 14;
// Says no more than the answer beside it.
const LONE_BOX = /^(?:\\boxed\s*\{[^{}]*\})?$/;

/* The finished question. */
export function resultView(result) {
  const view = el('div', {}, verdicts(result), heading('Groups of reasoning'));
  if (result.groups.length > 1) {
    view.append(el('p', { class: 'hint above' }, 'Distances are cosine distances between embeddings '
      + 'of the reasoning: 0 says the same, 1 has nothing in common.'));
  }
  for (const group of result.groups) {
    const members = result.responses.filter(response => response.group === group.group);
    members.sort((a, b) => (b.index === group.representative) - (a.index === group.representative)
      || a.index - b.index);
    view.append(groupCard(group, members, result.groups.length));
  }
  listenForJumps(view);
  return view;
}

/* Answers that were not grouped, since they are not all. */
export function partialView(responses) {
  const list = responses.map(response => responseView(response, !response.isDone && 'unfinished'));
  return el('div', {}, heading('Answers so far'), el('div', { class: 'card group g5' }, ...list));
}

function heading(title) {
  const button = el('button', { type: 'button', class: 'plain' }, 'Open all');
  button.addEventListener('click', () => {
    const all = [...button.closest('#out').querySelectorAll('.response')];
    const isOpening = !all.every(details => details.open);
    for (const details of all) details.open = isOpening;
    button.textContent = isOpening ? 'Close all' : 'Open all';
  });
  return el('div', { class: 'tools' }, el('h2', {}, title), button);
}

function colour(group) {
  return `g${group % NUM_COLOURS}`;
}

function verdicts(result) {
  const { majority, group_majority: ofGroups, best_of_n: best } = result.votes;
  const card = el('section', { class: 'card', 'aria-label': 'Votes' },
    el('div', { class: 'verdicts' },
      tile('Majority over groups', ofGroups.answer,
        `${ofGroups.count} of ${plural(result.groups.length, 'group')}`),
      tile('Majority of answers', majority.answer,
        `${majority.count} of ${plural(result.responses.length, 'answer')}`),
      best && tile('Best scored', best.answer, `answer ${best.index + 1}`)));
  if (result.responses.length) card.append(tally(result.responses));
  const hints = ['Each disc is an answer: its number and colour are its group.'];
  if (majority.answer !== ofGroups.answer) hints.push('The two votes differ.');
  if (result.note) hints.push(`${result.note}.`);
  card.append(el('p', { class: 'hint' }, hints.join(' ')));
  return card;
}

function tile(title, answer, detail) {
  const isLong = (answer ?? '').length > LONG_ANSWER;
  return el('div', {}, el('h3', {}, title),
    el('div', { class: isLong ? 'answer long' : 'answer' }, answerOf(answer)),
    el('p', { class: 'quiet' }, detail));
}

function tally(responses) {
  const rows = new Map();
  for (const response of responses) {
    const vote = response.vote === undefined ? response.extracted : response.vote;
    rows.set(vote, [...(rows.get(vote) ?? []), response]);
  }
  const ranked = [...rows].sort(([a, as], [b, bs]) => (a === null) - (b === null)
    || bs.length - as.length);
  return el('table', { class: 'tally' },
    el('caption', { class: 'away' }, 'Answers that were given'),
    el('tbody', {}, ...ranked.map(([vote, voters]) => {
      voters.sort((a, b) => a.group - b.group || a.index - b.index);
      return el('tr', {},
        el('th', { scope: 'row' }, answerOf(vote)),
        el('td', {}, el('div', { class: 'dots' }, ...voters.map(dot))),
        el('td', {}, plural(voters.length, 'answer')));
    })));
}

function dot(response) {
  return el('a', {
    class: `dot ${colour(response.group)}`,
    href: `#answer-${response.index + 1}`,
    'aria-label': `Answer ${response.index + 1}, group ${response.group + 1}`,
    title: `Answer ${response.index + 1}: ${firstLine(response.text)}`,
  }, String(response.group + 1));
}

function groupCard(group, members, numGroups) {
  const id = `group-${group.group + 1}`;
  const says = el('p', { class: 'says' }, 'votes for ',
    el('span', { class: 'answer' }, answerOf(group.answer)),
    group.votes === undefined ? '' : ` (${group.votes} of ${group.size})`);
  return el('section', { class: `card group ${colour(group.group)}`, 'aria-labelledby': id },
    el('header', {},
      el('h3', { id }, `Group ${group.group + 1}`),
      el('p', {}, plural(group.size, 'answer')),
      numGroups > 1 && el('p', {
        title: 'Mean cosine distance of its reasoning to that of the other groups',
      }, `${group.distance.toFixed(2)} from the others`),
      group.answer === null ? el('p', { class: 'says' }, 'has no vote') : says),
    ...members.map(response => responseView(
      response, members.length > 1 && response.index === group.representative && 'typical')));
}

function responseView(response, tag) {
  const { reasoning, rest } = parts(response.text);
  const number = response.index + 1;
  const facts = [];
  if (response.distance !== undefined) facts.push(`distance to the other groups ${response.distance.toFixed(2)}`);
  if (response.finish_reason === 'length') facts.push('cut off at the longest length');
  const details = el('details', { class: 'response', id: `answer-${number}` },
    el('summary', {},
      el('span', { class: 'num' }, el('span', { class: 'away' }, 'Answer '), String(number)),
      el('span', { class: 'first' }, tag && el('span', { class: 'tag' }, tag),
        el('span', { class: 'closed' }, rendered(firstLine(response.text))),
        el('span', { class: 'opened' }, `Answer ${number}`)),
      el('span', { class: 'answer' }, answerOf(response.extracted))),
    el('div', { class: 'thought' }));
  // Formulas of what nobody opens are not set.
  details.addEventListener('toggle', () => {
    const body = details.lastElementChild;
    if (!details.open || body.childElementCount) return;
    body.append(el('div', { class: 'text' }, rendered(reasoning || 'No reasoning.')));
    if (!LONE_BOX.test(rest)) body.append(el('div', { class: 'text final' }, rendered(rest)));
    if (facts.length) body.append(el('p', { class: 'facts' }, facts.join(' \u00b7 ')));
  });
  return details;
}

/* A disc opens its answer and goes there. */
function listenForJumps(view) {
  view.addEventListener('click', event => {
    const link = event.target.closest('.dot');
    if (!link) return;
    event.preventDefault();
    const details = view.querySelector(link.hash);
    details.open = true;
    for (const lit of view.querySelectorAll('.lit')) lit.classList.remove('lit');
    details.classList.add('lit');
    details.firstElementChild.focus({ preventScroll: true });
    details.scrollIntoView({ block: 'center' });
  });
}
