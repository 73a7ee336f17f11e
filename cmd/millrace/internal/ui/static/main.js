// SPDX-License-Identifier: Apache-2.0

// Connects the store, columns, lines, panel, search and keyboard.

import { Column } from './column.js';
import { Drawing } from './edges.js';
import { namespaces, totals } from './header.js';
import { Layers } from './layers.js';
import * as notices from './notices.js';
import { Panel } from './panel.js';
import * as rows from './rows.js';
import { Store, follow, setToken } from './store.js';
import { clock, dot, el } from './text.js';
import * as view from './view.js';

const byId = (id) => document.getElementById(id);

const first = view.read();
setToken(first.token);
if (first.token) history.replaceState(null, '', location.pathname);

let { id: selected, search, namespace, layer } = first;
let details = null;
/** told has the nodes that announce a Service according to agents, because its row may not have them. */
let told = null;
/** open maps groups that were opened or closed to their state. */
const open = new Map();
const store = new Store(() => later());

const common = {
  choose: (item) => choose(item),
  moved: () => drawing?.draw(),
};
const columns = {};
let drawing = null;
for (const [place, [name, title, draw, label]] of [
  ['routers', 'Routers', rows.drawRouter, rows.labelRouter],
  ['nodes', 'Nodes', rows.drawNode, rows.labelNode],
  ['services', 'Services', rows.drawService, rows.labelService],
  ['pods', 'Pods', rows.drawPod, rows.labelPod],
].entries()) {
  columns[name] = new Column({ ...common, element: byId(name), title, draw, label, leave: (by) => besides(place, by) });
}
drawing = new Drawing(byId('edges'), columns);

const panel = new Panel({
  element: byId('panel'), store,
  select: (id) => select(id),
  find: (text) => find(text),
  loaded: (found) => {
    const before = JSON.stringify(details?.pods);
    details = found;
    if (JSON.stringify(found?.pods) !== before) later();
  },
  announced: (id, vips) => {
    if (!vips) return;
    const names = new Set(vips.flatMap((vip) => (vip.announcedBy ?? []).flatMap((group) => group.nodes)));
    told = { id, names: [...names] };
    later();
  },
  traced: (id, way) => showWay(id, way),
});

const layers = new Layers({ element: byId('table'), store, drawing: byId('drawing') });
for (const link of document.querySelectorAll('#layers a')) {
  link.addEventListener('click', (event) => {
    event.preventDefault();
    layer = link.dataset.layer;
    keep(true);
    update();
  });
}

byId('namespace').addEventListener('change', (event) => {
  namespace = event.target.value;
  keep(true);
  update();
});

/** keep writes the view to the URL, as a new history entry or replacing the current one. */
function keep(entry) {
  const url = view.url({ id: selected, search, namespace, layer });
  if (entry) history.pushState(null, '', url);
  else history.replaceState(null, '', url);
}

let waiting = 0;
let drawn = false;
function later() {
  waiting ||= requestAnimationFrame(update);
}

function update() {
  waiting = 0;
  if (!store.head) return;
  totals(store);
  namespaces(store, namespace, layer);
  layers.draw(layer, search);
  const matches = rows.matcher(search);
  const items = {
    routers: rows.routerItems(store, matches),
    nodes: rows.nodeItems(store, matches, open, selected),
    services: rows.serviceItems(store, matches, search, namespace),
    pods: rows.podItems(store, selected.startsWith('service/') ? details : null, matches, namespace),
  };
  byId('found').textContent = matches ? foundText(items) : '';
  // Columns without a match remain complete: the nodes of a found Service are still relevant.
  if (matches && items.routers.length === 0) items.routers = rows.routerItems(store, null);
  if (matches && items.nodes.length === 0) items.nodes = rows.nodeItems(store, null, open, selected);
  const related = relatedTo(selected, items.nodes);
  for (const [name, column] of Object.entries(columns)) {
    column.selected = selected;
    column.bright = related?.[name] ?? null;
    column.set(items[name], emptyText(name, matches));
    heading(name, items[name]);
  }
  drawing.set(edges(items, related));
  panel.open(selected);
  sources();
  current();
  if (!drawn) performance.mark('drawn');
  drawn = true;
}

function foundText(items) {
  const nodes = items.nodes.reduce((sum, item) => sum + (item.type === 'zone' ? item.members.length : item.type ? 0 : 1), 0);
  return `${nodes} nodes, ${items.services.length} Services`;
}

function emptyText(name, matches) {
  if (matches) return 'none found';
  const kinds = { routers: 'lbpeers', nodes: 'lbnodes', services: 'vips' };
  if (store.head.refused?.some((refusal) => refusal.kind === kinds[name])) return 'not readable';
  return { routers: 'no LBPeer', nodes: 'no LBNode', services: 'no Service has a VIP', pods: 'select a Service' }[name];
}

function sources() {
  const { head } = store;
  const notes = [];
  if (head.refused?.length) notes.push(`not readable: ${head.refused.map((refusal) => refusal.kind).join(', ')}`);
  // Without a selection, the panel shows these.
  if (selected) notes.push(notices.liveMissing(head), notices.silent(head));
  const text = notes.filter(Boolean).join(' · ');
  byId('sources').textContent = text;
  byId('sources').title = text;
}

/** heading shows the numbers of rows by level; a click searches for the level. */
function heading(name, items) {
  const column = columns[name];
  const counted = items.flatMap((item) => (item.type === 'zone' ? item.members.map((id) => store.nodes.get(id)) : item.type ? [] : [item]));
  column.count.textContent = counted.length.toLocaleString('en');
  const levels = {};
  for (const item of counted) levels[item.level] = (levels[item.level] ?? 0) + 1;
  const buttons = ['bad', 'warning', 'unknown'].filter((level) => levels[level]).map((level) => el('button', {
    type: 'button', class: 'level', 'aria-label': `${levels[level]} ${name} ${level}: search for them`, on: { click: () => find(`is:${level}`) },
  }, dot(level), String(levels[level])));
  column.levels.replaceChildren(...buttons);
}

/** announcers are the nodes that announce a Service; undefined if unknown. */
const announcers = (row) => store.announcers(row) ?? (told?.id === row.id ? told.names : undefined);

/** relatedTo returns the rows related to the selection, by column; null without a selection. */
function relatedTo(id, nodeItems) {
  const row = store.row(id);
  if (!row && !id.startsWith('zone/')) return null;
  const related = { routers: new Set(), nodes: new Set(), services: new Set(), pods: new Set() };
  const addNode = (node, routers) => {
    related.nodes.add(node.id);
    if (routers) for (const session of node.sessions ?? []) related.routers.add(`router/${session.peer}`);
  };
  if (id.startsWith('zone/')) {
    for (const node of store.nodes.values()) if ((node.zone ?? '') === id.slice('zone/'.length)) addNode(node, true);
    related.services = related.pods = null;
  } else if (id.startsWith('service/') || id.startsWith('vip/')) {
    related.services.add(id);
    const names = announcers(row);
    for (const name of names ?? []) {
      const node = store.nodes.get(`node/${name}`);
      if (node) addNode(node, true);
    }
    for (const pod of details?.id === id ? details.pods ?? [] : row.pods ?? []) related.pods.add(`pod/${row.namespace}/${pod.name}`);
    // Without node names, related nodes are unknown.
    if (!names) related.nodes = related.routers = null;
  } else if (id.startsWith('node/')) {
    addNode(row, true);
    const place = store.answered.indexOf(row.name);
    let known = false;
    for (const service of store.services.values()) {
      known ||= Boolean(service.by || service.ranges);
      if (store.announces(service, row.name, place)) related.services.add(service.id);
      for (const pod of service.pods ?? []) if (pod.node === row.name) related.pods.add(`pod/${service.namespace}/${pod.name}`);
    }
    if (!known) related.services = related.pods = null;
    else if (!related.pods.size) related.pods = null;
  } else {
    related.routers.add(id);
    for (const node of store.nodes.values()) if (node.sessions?.some((session) => session.peer === row.name)) addNode(node, false);
    related.services = related.pods = null;
  }
  // A group is highlighted if a node in it is; for a Service it shows the number of these nodes.
  for (const item of related.nodes ? nodeItems : []) {
    const share = item.members?.filter((member) => related.nodes.has(member)).length;
    if (share) related.nodes.add(item.id);
    if (share !== undefined && related.services?.has(id)) item.share = share;
  }
  return related;
}

/** places maps nodes to their rows, which are those of their groups if closed. */
function places(items) {
  const stands = new Map();
  for (const item of items) for (const member of item.members ?? []) stands.set(member, item.id);
  for (const item of items) if (!item.members) stands.set(item.id, item.id);
  return stands;
}

function edges(items, related) {
  const list = [];
  const stands = places(items.nodes);
  const isStrong = (...parts) => Boolean(related) && parts.every(([column, id]) => related[column]?.has(id));
  for (const node of store.nodes.values()) {
    const at = stands.get(node.id);
    if (!at) continue;
    for (const session of node.sessions ?? []) {
      const level = session.stale ? 'unknown' : !session.up ? 'bad' : session.bfd && session.bfd !== 'Up' ? 'warning' : 'good';
      list.push({ from: ['routers', `router/${session.peer}`], to: ['nodes', at], level,
        strong: isStrong(['routers', `router/${session.peer}`], ['nodes', node.id]) });
    }
  }
  const announced = (service, name) => {
    const at = stands.get(`node/${name}`);
    if (at) list.push({ from: ['nodes', at], to: ['services', service.id], level: 'good', strong: isStrong(['nodes', `node/${name}`], ['services', service.id]) });
  };
  const chosen = items.services.find((service) => service.id === selected);
  for (const name of chosen ? announcers(chosen) ?? [] : []) announced(chosen, name);
  const node = store.nodes.get(selected);
  const place = node ? store.answered.indexOf(node.name) : -1;
  if (node) {
    for (const service of items.services) if (store.announces(service, node.name, place)) announced(service, node.name);
  }
  for (const pod of items.pods) {
    for (const service of pod.services) {
      list.push({ from: ['services', service], to: ['pods', pod.id], level: pod.level === 'good' ? 'good' : 'warning',
        strong: isStrong(['services', service], ['pods', pod.id]) });
    }
  }
  return list;
}

/** showWay draws the path of a packet over the nodes to the Service and the pod. */
function showWay(id, way) {
  const stops = way.hops.map((hop) => ['nodes', places(columns.nodes.items).get(`node/${hop.node}`) ?? `node/${hop.node}`]);
  const last = way.hops.at(-1);
  if (last?.verdict === 'Delivered') {
    stops.push(['services', id]);
    if (way.pod) stops.push(['pods', `pod/${way.pod}`]);
  }
  for (const [column, row] of stops) columns[column].show(row);
  drawing.trace({ stops, reason: last?.verdict === 'Dropped' ? last.reason : '' });
}

function choose(item) {
  if (item.type === 'group') {
    open.set(item.id, !item.open);
    return later();
  }
  if (item.type === 'zone' && item.id === selected) {
    open.set(item.id, !item.open);
    return later();
  }
  if (item.id.startsWith('pod/')) return select(item.services[0]);
  select(item.id);
}

/** select shows a row and stores it in the URL. */
function select(id) {
  if (id === selected) return;
  selectNow(id);
  keep(true);
}

function selectNow(id) {
  if (id !== selected) {
    selected = id;
    details = null;
    drawing.trace(null);
  }
  update();
  for (const column of Object.values(columns)) {
    if (column.places.has(id)) {
      column.active = id;
      column.show(id);
      column.paint();
    }
  }
}

for (const event of ['popstate', 'hashchange']) {
  addEventListener(event, () => {
    const shown = view.read();
    if (shown.token) location.reload();
    ({ search, namespace, layer } = shown);
    field.value = search;
    selectNow(shown.id);
  });
}

/** besides moves the focus to the next column with rows in a direction. */
function besides(place, by) {
  const all = Object.values(columns);
  for (let at = place + by; at in all; at += by) {
    if (all[at].items.length) return all[at].list.focus({ focusVisible: true });
  }
}

const field = byId('search');
field.value = search;

function find(text) {
  field.value = text;
  search = text;
  keep(false);
  for (const column of Object.values(columns)) column.list.scrollTop = 0;
  update();
}

field.addEventListener('input', () => find(field.value));
field.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' && event.key !== 'ArrowDown') return;
  event.preventDefault();
  const matches = rows.matcher(search);
  // Most searches are for a Service, then for a node or a router.
  const column = ['services', 'nodes', 'routers'].map((name) => columns[name]).find((candidate) => candidate.items.some((item) => !matches || (item.members ? item.members.some((id) => matches(store.nodes.get(id))) : matches(item))));
  if (!column) return;
  column.active = null;
  column.list.focus();
  if (event.key === 'Enter') choose(column.items[0]);
});

addEventListener('keydown', (event) => {
  const typing = event.target.matches('input, select, textarea');
  if (event.key === '/' && !typing) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.key === 'Escape') {
    if (document.activeElement === field && search) find('');
    else if (typing) event.target.blur();
    else if (selected) back();
    else if (search) find('');
  }
});

/** back clears the selection. The focus returns to its column if it was in the details. */
function back() {
  const column = Object.values(columns).find((candidate) => candidate.places.has(selected));
  if (column && byId('panel').contains(document.activeElement)) {
    column.active = selected;
    column.list.focus({ focusVisible: true });
  }
  select('');
}

addEventListener('resize', () => drawing.draw());

const theme = localStorage.getItem('theme');
if (theme) document.documentElement.dataset.theme = theme;
byId('theme').addEventListener('click', () => {
  const dark = document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  const next = dark === 'dark' ? 'light' : 'dark';
  document.documentElement.dataset.theme = next;
  localStorage.setItem('theme', next);
});

/** connection is the state of the connection to millrace ui, with the times of its loss and of the last answer. */
let connection = { state: 'none', text: '' };

follow(store, (state, text) => {
  const now = new Date();
  connection = state === 'live' ? { state, text, seen: now } : { state, text, since: connection.since ?? now, seen: connection.seen };
  current();
});

/** current shows whether the page is current. Unchanged alerts stay, because screen readers read new ones. */
function current() {
  const { head } = store;
  const page = connection.state === 'none' ? null : notices.ofPage(connection);
  const shown = [page, ...(page ? [] : [notices.ofServer(head), notices.ofLive(head)])].filter(Boolean);
  const had = byId('notices');
  if (shown.map((notice) => notice.textContent).join() !== [...had.children].map((notice) => notice.textContent).join()) {
    had.replaceChildren(...shown);
    // The height of the columns has changed.
    drawing.draw();
  }
  const seen = page ? connection.seen : head?.away?.seen;
  const old = Boolean(page || head?.away);
  document.body.className = old ? 'old' : '';
  byId('connection').className = old ? 'old' : connection.state;
  byId('connection').textContent = old ? (seen ? `from ${clock(seen)}` : 'not connected') : connection.state === 'live' ? 'live' : '';
}
