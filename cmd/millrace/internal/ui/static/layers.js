// SPDX-License-Identifier: Apache-2.0

// Tables that replace the columns: VIPPools, and the routes of Ingresses and Gateways.

import { compare, dot, el, number, plural } from './text.js';
import { ask } from './store.js';

/** again is the interval between queries of routes in ms, most the maximum number of rows of a table. */
const again = 10000;
const most = 500;

/** Layers shows a table in an element, or the columns. */
export class Layers {
  constructor(options) {
    Object.assign(this, options);
    this.routes = null;
    this.failure = '';
  }

  draw(layer, search) {
    this.search = search.toLowerCase();
    this.element.hidden = !layer;
    this.drawing.hidden = Boolean(layer);
    if (layer !== this.layer) {
      clearTimeout(this.timer);
      this.layer = layer;
      if (layer === 'routes') this.query();
    }
    if (layer === 'pools') this.pools();
    if (layer === 'routes') this.routing();
  }

  async query() {
    try {
      this.routes = await ask('api/routes', {});
      this.failure = '';
    } catch (error) {
      this.failure = error.message;
    }
    if (this.layer !== 'routes') return;
    this.routing();
    this.timer = setTimeout(() => this.query(), again);
  }

  /** show replaces the content if look has changed. */
  show(look, content) {
    const text = JSON.stringify([look, this.search]);
    if (text === this.look) return;
    this.look = text;
    this.element.replaceChildren(...content().flat().filter(Boolean));
  }

  /** table returns a table of the rows that match the search. */
  table(headings, rows) {
    const found = rows.filter((row) => !this.search || row.text.toLowerCase().includes(this.search));
    if (!found.length) return [el('p', { class: 'empty dim' }, rows.length ? 'none found' : 'none')];
    return [el('table', {}, el('thead', {}, el('tr', {}, headings.map((heading) => el('th', { scope: 'col' }, heading)))),
      el('tbody', {}, found.slice(0, most).map((row) => el('tr', {}, row.cells.map((cell) => el('td', {}, ...[cell].flat())))))),
    found.length > most && el('p', { class: 'dim' }, `… and ${found.length - most} more`)];
  }

  pools() {
    const list = [...this.store.pools.values()].sort((a, b) => compare(a.name, b.name));
    this.show(list, () => [el('h2', {}, plural(list.length, 'pool')), this.table(['Pool', 'Addresses', 'Used', 'Free', ''], list.map((pool) => ({
      text: [pool.name, ...pool.addresses, pool.note].join('\n'),
      cells: [[dot(pool.level), el('b', {}, pool.name)], el('span', { class: 'mono' }, pool.addresses.join(', ')),
        pool.assigned === undefined ? '?' : pool.assigned.toLocaleString('en'), pool.free ?? '?', pool.note ?? ''] })))]);
  }

  routing() {
    const { routes, failure } = this;
    this.show([routes, failure], () => {
      if (!routes) return [el('p', { class: failure ? 'notice' : 'dim' }, failure || 'Querying the API server …')];
      const rules = routes.owners.flatMap((owner) => owner.rules.map((rule) => ({
        text: [owner.name, rule.route.namespace, rule.route.name, rule.hostname, rule.match].join('\n'),
        cells: [el('b', {}, rule.hostname), el('span', { class: 'mono' }, rule.match), rule.ports.join(', '),
          `${rule.route.kind} ${rule.route.namespace}/${rule.route.name}`, `${owner.kind} ${owner.name} ${(owner.vips ?? []).join(', ')}`,
          rule.answer || (rule.backends ?? []).map((backend) => el('div', {}, dot(backend.refused || !backend.endpoints.length ? 'bad' : 'good'),
            ` ${backend.name ? `${backend.namespace}/${backend.name}` : 'invalid'}, ${plural(backend.endpoints.length, 'endpoint')}`))],
      })));
      return [failure && el('p', { class: 'notice' }, failure), el('h2', {}, plural(rules.length, 'rule')),
        this.table(['Host', 'Path', 'Ports', 'Route', 'Gateway or class', 'Backends'], rules),
        routes.problems.length > 0 && el('h2', {}, plural(routes.problems.length, 'problem')),
        routes.problems.length > 0 && this.table(['Object', 'Reason', 'Message'], routes.problems.map((problem) => ({
          text: [problem.object.namespace, problem.object.name, problem.reason, problem.message].join('\n'),
          cells: [[dot('warning'), `${problem.object.kind} ${problem.object.namespace ? `${problem.object.namespace}/` : ''}${problem.object.name}`], problem.reason, problem.message] }))),
        ...(routes.remarks ?? []).map((remark) => el('p', { class: 'dim' }, remark))].flat();
    });
  }
}

const figures = [['connections', 'Connections per second'], ['packets', 'Packets per second'], ['bits', 'Bits per second'], ['drops', 'Drops per second']];

/** charts draws the rates since the page was opened, for at most an hour. */
export function charts(history, svg) {
  const from = history[0][0];
  const to = Date.now();
  return figures.map(([name, title]) => {
    const values = history.map(([, rates]) => rates[name]);
    const top = Math.max(...values) || 1;
    const x = (time) => (300 * (time - from) / (to - from || 1)).toFixed(1);
    const points = [...history, [to]].map(([time], index) => `${x(time)},${(39 - 34 * (values[index] ?? values.at(-1)) / top).toFixed(1)}`);
    return el('figure', {}, el('figcaption', {}, el('span', {}, title), el('b', {}, number(values.at(-1))), el('span', { class: 'dim' }, `max ${number(Math.max(...values))}`)),
      svg('svg', { viewBox: '0 0 300 40', preserveAspectRatio: 'none', role: 'img', 'aria-label': title }, svg('polyline', { points: points.join(' ') })));
  });
}
