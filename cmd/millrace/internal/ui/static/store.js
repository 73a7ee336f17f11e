// SPDX-License-Identifier: Apache-2.0

// The last state from the server.

/** lists are the kinds of rows. */
export const lists = ['routers', 'nodes', 'services', 'pools', 'problems'];

/** period is the retention of rates, pause the minimum time between two of them, in ms. */
const period = 3600000;
const pause = 10000;

/** quiet is the time in ms without an event after which the page reconnects; one is sent every 2 s. */
const quiet = 10000;
const again = 2000;

/** Store has the rows by ID and calls changed after each change. */
export class Store {
  constructor(changed) {
    this.changed = changed;
    this.head = null;
    /** history has entries [time, rates] since the page was opened, for at most an hour. */
    this.history = [];
    /** answered are the node names to which the ranges of Services refer. */
    this.answered = [];
    for (const list of lists) this[list] = new Map();
  }

  /** apply applies a change of package view. */
  apply(change) {
    const touched = new Set();
    if (change.head) {
      this.head = change.head;
      this.record(Date.now());
      touched.add('head');
    }
    if (change.answered !== undefined) {
      this.answered = change.answered ?? [];
      touched.add('services');
    }
    for (const list of lists) {
      if (change.full) {
        this[list].clear();
        touched.add(list);
      }
      const rows = change[list];
      if (!rows) continue;
      touched.add(list);
      for (const row of rows.set ?? []) this[list].set(row.id, row);
      for (const id of rows.gone ?? []) this[list].delete(id);
    }
    if (touched.size) this.changed(touched);
  }

  /** record adds the current rates to the history. */
  record(now) {
    const { rates } = this.head;
    const last = this.history.at(-1);
    if (!rates || last && now - last[0] < pause) return;
    this.history.push([now, rates]);
    while (now - this.history[0][0] > period) this.history.shift();
  }

  /** announcers returns the names of nodes that announce a Service; undefined if unknown. */
  announcers(row) {
    if (row.by) return row.by;
    if (row.announcing === 0) return [];
    return row.ranges && placesOf(row).flatMap(([from, to]) => this.answered.slice(from, to + 1));
  }

  /** announces reports whether a node with this name and index in answered announces a Service. */
  announces(row, name, place) {
    if (row.by) return row.by.includes(name);
    return Boolean(row.ranges) && placesOf(row).some(([from, to]) => place >= from && place <= to);
  }

  /** row returns a router, node or Service by its ID. */
  row(id) {
    return this.routers.get(id) ?? this.nodes.get(id) ?? this.services.get(id);
  }
}

const ranges = new WeakMap();

/** placesOf parses the ranges of a row, such as 0-4,7. */
function placesOf(row) {
  if (!ranges.has(row)) {
    ranges.set(row, row.ranges.split(',').map((part) => {
      const [from, to = from] = part.split('-').map(Number);
      return [from, to];
    }));
  }
  return ranges.get(row);
}

let token = '';

/** setToken stores the token for this tab and port. */
export function setToken(given) {
  if (given) sessionStorage.setItem('token', given);
  token = sessionStorage.getItem('token') ?? '';
}

function request(path, options = {}) {
  return fetch(path, { ...options, headers: { Authorization: `Bearer ${token}` }, credentials: 'omit' });
}

/** ask returns the response of the server and throws its error, or one if it does not answer. */
export async function ask(path, parameters, signal) {
  let response;
  try {
    response = await request(`${path}?${new URLSearchParams(parameters)}`, { signal });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('millrace ui does not answer; is it still running?');
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** follow applies changes until the server refuses. status is called with live, lost or refused. */
export async function follow(store, status) {
  for (;;) {
    try {
      const response = await request('api/events');
      if (response.status === 401 || response.status === 421) {
        status('refused', (await response.json()).error);
        return;
      }
      if (response.ok) await read(response.body, store, status);
    } catch {
      // The connection ended or timed out; it is retried.
    }
    status('lost', 'millrace ui does not answer. Is it still running?');
    await new Promise((resolve) => setTimeout(resolve, again));
  }
}

async function read(body, store, status) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  // Large events arrive in many pieces, which are joined once at the end.
  let pieces = [];
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), quiet);
    const { value, done } = await reader.read();
    clearTimeout(timer);
    if (done) return;
    pieces.push(value);
    const ends = value.includes('\n\n') || (value.startsWith('\n') && pieces.at(-2)?.endsWith('\n'));
    if (!ends) continue;
    const events = pieces.join('').split('\n\n');
    pieces = [events.pop()];
    for (const event of events) store.apply(JSON.parse(event.slice(event.indexOf('data: ') + 6)));
    status('live', '');
  }
}
