/* The page: a form, a question on its way, and what came of it. */

import { ApiError, ask, servedModel } from './api.js';
import { el, plural } from './dom.js';
import { Live } from './live.js';
import { listenForPictures, readPicture } from './picture.js';
import { partialView, resultView } from './result.js';

const UNAUTHORISED = 401;
const byId = id => document.getElementById(id);
const form = byId('ask');
const out = byId('out');
let picture = null;
let running = null;

function settings() {
  const field = name => byId(name).value.trim();
  const content = [{ type: 'text', text: field('question') }];
  if (picture) content.unshift({ type: 'image_url', image_url: { url: picture.url } });
  const question = {
    messages: [{ role: 'user', content }],
    n: Number(field('n')),
    k: Number(field('k')),
    temperature: Number(field('temperature')),
  };
  for (const name of ['max_tokens', 'seed', 'min_group_size']) {
    if (field(name)) question[name] = Number(field(name));
  }
  return question;
}

async function submit() {
  if (running) return;
  running = new AbortController();
  const question = settings();
  const live = new Live(question.n);
  const began = performance.now();
  let result = null;
  showError(null);
  setBusy(true);
  out.replaceChildren(live.element);
  // Where the form is above the answers and not beside them.
  if (form.offsetTop + form.offsetHeight <= byId('answers').offsetTop) {
    byId('answers').scrollIntoView({ block: 'start' });
  }
  progress(0, question.n);
  status('Asking\u2026');
  try {
    for await (const message of ask(question, byId('key').value, running.signal)) {
      if (message.type === 'delta') live.delta(message);
      if (message.type === 'response') {
        live.complete(message);
        progress(live.numDone, question.n);
        status(`${live.numDone} of ${plural(question.n, 'answer')}`);
      }
      if (message.type === 'strategies') result = message;
    }
    if (!result) throw new ApiError('The server sent no groups.');
    out.replaceChildren(resultView(result));
    status(`${plural(result.responses.length, 'answer')} in `
      + `${plural(result.groups.length, 'group')}, `
      + `${((performance.now() - began) / 1000).toFixed(1)} s`);
    showModel({ name: result.model, version: result.policy_version });
  } catch (error) {
    const isStopped = running.signal.aborted;
    out.replaceChildren(...(live.arrived.length ? [partialView(live.arrived)] : []));
    status(isStopped ? `Stopped after ${live.numDone} of ${plural(question.n, 'answer')}.` : '');
    if (!isStopped) showError(error);
  } finally {
    running.abort();
    running = null;
    setBusy(false);
  }
}

function setBusy(isBusy) {
  // The focus must not go with the button that has it.
  if (document.activeElement === byId('stop')) byId('go').focus();
  byId('go').setAttribute('aria-disabled', String(isBusy));
  byId('go').textContent = isBusy ? 'Asking\u2026' : 'Ask';
  byId('stop').hidden = !isBusy;
  byId('progress').hidden = !isBusy;
  out.setAttribute('aria-busy', String(isBusy));
}

function progress(value, max) {
  Object.assign(byId('progress'), { max, value });
}

function status(text) {
  byId('status').textContent = text;
}

function showError(error) {
  const box = byId('error');
  box.hidden = error === null;
  box.replaceChildren();
  if (error === null) return;
  if (error.status === UNAUTHORISED) return askForKey(byId('key').value !== '');
  box.append(el('b', {}, 'That did not work. '), error.message);
}

function askForKey(wasGiven) {
  byId('key-row').hidden = false;
  byId('error').hidden = false;
  byId('error').replaceChildren(wasGiven
    ? 'The server does not know this API key.'
    : 'This server asks for an API key: type it in, then ask again.');
  byId('key').focus();
}

function showModel({ name, version }) {
  const known = version === undefined || version === null ? '' : `, policy version ${version}`;
  byId('model').textContent = name ? `${name}${known}` : '';
}

async function takePicture(file) {
  const note = byId('picture-note');
  // Without the key the limits stay unknown, and the server says what is too large.
  const { limits } = await servedModel(byId('key').value).catch(() => ({ limits: {} }));
  try {
    picture = await readPicture(file, limits);
  } catch (error) {
    note.textContent = error.message;
    return;
  }
  note.textContent = picture.note;
  showPicture();
}

function showPicture() {
  const image = byId('picture');
  image.hidden = byId('remove').hidden = !picture;
  byId('drop').classList.toggle('full', Boolean(picture));
  if (picture) {
    image.src = picture.url;
    image.classList.toggle('small', picture.width < 256);
  } else {
    image.removeAttribute('src');
  }
}

form.addEventListener('submit', event => {
  event.preventDefault();
  submit();
});
form.addEventListener('invalid', event => event.target.closest('details')?.setAttribute('open', ''),
  true);
byId('stop').addEventListener('click', () => running?.abort());
byId('remove').addEventListener('click', () => {
  picture = null;
  byId('picture-note').textContent = '';
  showPicture();
  byId('file').focus();
});
byId('question').addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') running?.abort();
  if (event.key === 'Enter' && event.ctrlKey && event.target.id !== 'question') {
    event.preventDefault();
    form.requestSubmit();
  }
});
listenForPictures(byId('file'), byId('drop'), takePicture);
servedModel('').then(showModel).catch(error => {
  if (error.status === UNAUTHORISED) byId('key-row').hidden = false;
});
