// SPDX-License-Identifier: Apache-2.0

// Notices about outdated parts of the page.

import { clock, el, plural } from './text.js';

/** ofPage returns a notice if millrace ui does not answer or refuses the page, or null. */
export function ofPage(connection) {
  const { state, text, since, seen } = connection;
  if (state === 'live') return null;
  return el('p', { class: 'bad' }, el('b', {}, text), state === 'lost' && ` Not since ${clock(since)}.`, picture(seen),
    state === 'lost' && ' The page retries every 2 s.');
}

/** ofServer returns a notice if the API server does not answer, or null. */
export function ofServer(head) {
  if (!head?.away) return null;
  const { since, seen, message } = head.away;
  return el('p', { class: 'bad' }, el('b', {}, `The API server has not answered since ${clock(since)}.`), picture(seen),
    ` Last error: ${message}. The page retries every 5 s.`);
}

/** ofLive returns a notice if the aggregated API no longer answers, or null. */
export function ofLive(head) {
  if (!head?.live?.seen || head.away) return null;
  const { since, seen, message } = head.live;
  return el('p', {}, el('b', {}, `The aggregated API has not answered since ${clock(since)}.`),
    ` Rates and announcements are from ${clock(seen)}. Last error: ${message}. The page retries every 5 s.`);
}

/** liveMissing returns why the aggregated API has never been read; empty if it has. */
export function liveMissing(head) {
  if (!head.live || head.live.seen) return '';
  return `The aggregated API has not been read since ${clock(head.live.since)}: ${head.live.message}. ` +
    'Without it, the agents are queried, for the selected object only.';
}

/** silent returns a text about nodes that did not answer the aggregated API. */
export function silent(head) {
  if (!head.silent) return '';
  const more = head.silent - head.silentNodes.length;
  return `${plural(head.silent, 'node')} did not answer the aggregated API: ${head.silentNodes.join(', ')}${more > 0 ? ` and ${more} more` : ''}. ` +
    'Their rates and announcements are missing.';
}

const picture = (seen) => (seen ? ` The page shows the state at ${clock(seen)}.` : ' No state has been received yet.');
