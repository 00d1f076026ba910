/* The server: its models, and a question whose answers arrive one by one. */

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/* {name, version, limits} of what is served now. */
export async function servedModel(key) {
  const response = await reach('v1/models', { headers: headers(key) });
  const { data } = await response.json();
  return {
    name: data?.[0]?.id ?? '',
    version: response.headers.get('x-policy-version'),
    limits: data?.[0]?.limits ?? {},
  };
}

/* Messages of a question, until the server says that they are all. */
export async function* ask(question, key, signal) {
  const response = await reach('v1/strategies', {
    method: 'POST',
    headers: { ...headers(key), 'Content-Type': 'application/json' },
    body: JSON.stringify({ ...question, stream: true }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === '[DONE]') return;
    const message = JSON.parse(data);
    if (message.error) throw new ApiError(message.error.message ?? 'The server failed.');
    yield message;
  }
  throw new ApiError('The connection broke off before the answers were complete.');
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function reach(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached. Is it running, and are you online?');
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const reason = body?.error?.message ?? `The server answered with status ${response.status}.`;
  throw new ApiError(reason, response.status);
}

/* Data of server-sent events. */
async function* events(body) {
  let rest = '';
  for await (const chunk of chunks(body.pipeThrough(new TextDecoderStream()))) {
    const blocks = (rest + chunk).replaceAll('\r\n', '\n').split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split('\n').filter(line => line.startsWith('data:'));
      if (lines.length) yield lines.map(line => line.slice(5).replace(/^ /, '')).join('\n');
    }
  }
}

/* Not every browser iterates over a stream. */
async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
