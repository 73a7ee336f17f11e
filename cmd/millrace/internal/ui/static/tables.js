// SPDX-License-Identifier: Apache-2.0

// Tables of the panel.

import { clock, el, plural } from './text.js';

/** table returns a table; figures are the indexes of columns with numbers. */
export function table(headings, rows, figures = []) {
  const kind = (index) => (figures.includes(index) ? 'figure' : null);
  return el('table', {},
    el('thead', {}, el('tr', {}, headings.map((heading, index) => el('th', { class: kind(index), scope: 'col' }, heading)))),
    el('tbody', {}, rows.map((cells) => el('tr', {}, cells.map((content, index) => el('td', { class: kind(index) }, content))))));
}

/** timeline shows the history of a Service. */
export function timeline(told) {
  const late = (told.late ?? []).map((node) => el('p', { class: 'dim' }, node.since ? `${node.node} recorded only since ${clock(node.since)}.` : `${node.node} recorded nothing yet.`));
  const warnings = (told.warnings ?? []).map((warning) => el('p', { class: 'notice' }, warning));
  if (!told.lines?.length) return [...late, el('p', { class: 'dim' }, 'No history of that time.'), ...warnings];
  return [...late, table(['Time', 'Node', 'What'], told.lines.map((line) => [
    el('span', { class: 'mono' }, clock(line.time)), where(line.nodes, told.nodes.length),
    line.count ? `${plural(line.count, 'packet')} dropped: ${line.text}` : line.text])), ...warnings];
}

function where(nodes, all) {
  if (!nodes?.length) return 'event';
  if (nodes.length === all && all > 1) return `all ${all} nodes`;
  return nodes.length <= 3 ? nodes.join(', ') : `${nodes.length} nodes`;
}
