// SPDX-License-Identifier: Apache-2.0

// The rows of the columns. More than 60 nodes are grouped by zone and, in a zone, by problem.

import { compare, dot, el, levelText, nameOf, number, plural, ratioClass, ratioNote, ratioText, severity, worse } from './text.js';

/** ungrouped is the maximum number of nodes without groups. */
export const ungrouped = 60;
/** opened is the maximum number of nodes with the same problem in a group that is initially open. */
const opened = 5;

/** matcher returns a predicate for a search: the row's text must contain every word. */
export function matcher(search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const levels = words.filter((word) => word.startsWith('is:')).map((word) => word.slice(3));
  const others = words.filter((word) => !word.startsWith('is:'));
  return (row) => levels.every((level) => row.level === level) && others.every((word) => textOf(row).includes(word));
}

const texts = new WeakMap();

/** textOf returns the text of a row for searches. */
function textOf(row) {
  let text = texts.get(row);
  if (text === undefined) {
    text = [row.name, row.namespace && `${row.namespace}/${row.name}`, row.zone, row.address, row.asn, row.reason, row.note,
      ...(row.vips ?? []), ...(row.pods ?? []).map((pod) => pod.name), ...(row.sessions?.map?.((session) => session.state) ?? [])]
      .filter(Boolean).join('\n').toLowerCase();
    texts.set(row, text);
  }
  return text;
}

const byName = (a, b) => compare(a.name, b.name);
const byService = (a, b) => severity[a.level] - severity[b.level] || compare(a.namespace ?? '', b.namespace ?? '') || compare(a.name, b.name);

/** routerItems returns the matching routers. */
export function routerItems(store, matches) {
  return [...store.routers.values()].filter((row) => !matches || matches(row)).sort(byName);
}

/** serviceItems returns Services: exact matches of the name or VIP first, then those with problems. */
export function serviceItems(store, matches, search, namespace = '') {
  const wanted = search.trim().toLowerCase();
  const other = (row) => (wanted && (row.name === wanted || `${row.namespace}/${row.name}` === wanted || row.vips?.includes(wanted)) ? 0 : 1);
  return [...store.services.values()].filter((row) => (!namespace || row.namespace === namespace) && (!matches || matches(row))).sort((a, b) => other(a) - other(b) || byService(a, b));
}

/**
 * nodeItems returns nodes, or groups and the nodes of open ones. The selected node also has a row in a
 * closed group.
 */
export function nodeItems(store, matches, open, selected = '') {
  const all = [...store.nodes.values()];
  const nodes = (matches ? all.filter(matches) : all).sort(byName);
  if (all.length <= ungrouped || matches && nodes.length <= ungrouped) return nodes;
  const items = [];
  for (const [zone, members] of grouped(nodes, (node) => node.zone || '')) {
    items.push(groupOf(`zone/${zone}`, zone || 'no zone', members, 'zone'));
    if (open.get(`zone/${zone}`) === false) {
      items.at(-1).open = false;
      items.push(...members.filter((node) => node.id === selected).map(member));
      continue;
    }
    items.at(-1).open = true;
    const reasons = [...grouped(members, (node) => node.reason || node.level)];
    reasons.sort(([, a], [, b]) => severity[levelOf(a)] - severity[levelOf(b)] || b.length - a.length);
    for (const [reason, same] of reasons) {
      const id = `group/${zone}/${reason}`;
      const group = groupOf(id, same[0].level === 'good' ? 'healthy' : same[0].reason || levelText(same[0].level), same, 'group');
      group.open = open.get(id) ?? (same[0].level !== 'good' && same.length <= opened);
      items.push(group);
      items.push(...same.filter((node) => group.open || node.id === selected).map(member));
    }
  }
  return items;
}

const member = (node) => ({ ...node, type: 'member' });

function grouped(list, key) {
  const groups = new Map();
  for (const item of list) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
}

const levelOf = (members) => members.reduce((level, member) => worse(level, member.level), 'good');

function groupOf(id, name, members, type) {
  const sessions = members.flatMap((node) => node.sessions ?? []);
  return {
    id, name, type, level: levelOf(members), members: members.map((node) => node.id),
    sessions: sumOf(sessions),
    bad: members.filter((node) => node.level !== 'good' && node.level !== 'idle').length,
  };
}

/** podItems returns the pods of the selected Service, or of all Services whose rows name them. */
export function podItems(store, details, matches, namespace = '') {
  const pods = new Map();
  const add = (service, list, namespace) => {
    for (const pod of list ?? []) {
      const id = `pod/${namespace}/${pod.name}`;
      const level = pod.ready ? 'good' : pod.terminating ? 'idle' : 'warning';
      const item = pods.get(id);
      if (item) {
        item.services.push(service);
        item.level = worse(item.level, level);
      } else {
        pods.set(id, { id, name: pod.name, node: pod.node, level, services: [service],
          note: pod.ready ? '' : pod.terminating ? 'terminating' : 'not ready' });
      }
    }
  };
  if (details?.pods) {
    add(details.id, details.pods, details.id.split('/')[1]);
  } else {
    for (const row of store.services.values()) {
      if ((!namespace || row.namespace === namespace) && (!matches || matches(row))) add(row.id, row.pods, row.namespace);
    }
  }
  return [...pods.values()].sort((a, b) => severity[a.level] - severity[b.level] || compare(a.name, b.name));
}

const cell = (kind, text, title) => el('span', { class: kind, title }, text);
const ratio = (count, title) => cell(`figure ${ratioClass(count)}`, ratioText(count), title + ratioNote(count));

const sumOf = (sessions) => ({
  good: sessions.filter((session) => session.up && !session.stale).length,
  all: sessions.length, unknown: sessions.filter((session) => session.stale).length,
});

/** sessionCount counts the sessions of a node. */
export function sessionCount(node) {
  const sessions = node.sessions ?? [];
  return sumOf(sessions);
}

export const drawRouter = (row) => [
  dot(row.level), nameOf(row.name), cell('note mono', row.address ?? ''),
  row.sessions.all > 0 && ratio(row.sessions, 'BGP sessions established'),
];

export const labelRouter = (row) => [
  `router ${row.name}`, levelText(row.level), row.note, `${row.sessions.good} of ${row.sessions.all} BGP sessions established${ratioNote(row.sessions)}`,
  row.bfd.all > 0 && `${row.bfd.good} of ${row.bfd.all} BFD sessions up${ratioNote(row.bfd)}`,
].filter(Boolean).join(', ');

export function drawNode(row) {
  if (row.type === 'zone' || row.type === 'group') {
    const all = row.members.length;
    const note = row.share !== undefined ? 'announce' : row.type === 'zone' ? plural(all, 'node') : String(all);
    return [cell('fold', row.open ? '▾' : '▸'), dot(row.level), cell('name', row.name), cell('note', note),
      row.share !== undefined ? cell('figure share', `${row.share}/${all}`, 'nodes that announce the selected Service')
        : row.sessions.all > 0 && ratio(row.sessions, 'BGP sessions established')];
  }
  const sessions = sessionCount(row);
  return [dot(row.level), nameOf(row.name), cell('note', row.type === 'member' ? '' : row.level === 'good' ? row.zone ?? '' : row.reason ?? ''),
    sessions.all > 0 && ratio(sessions, 'BGP sessions established')];
}

export function labelNode(row) {
  if (row.type === 'zone' || row.type === 'group') {
    const share = row.share === undefined ? '' : `${row.share} announce the selected Service, `;
    return `${row.type === 'zone' ? 'zone ' : ''}${row.name}, ${plural(row.members.length, 'node')}, ${share}${plural(row.bad, 'with a problem', 'with problems')}, ` +
      `${row.sessions.good} of ${row.sessions.all} BGP sessions established${ratioNote(row.sessions)}`;
  }
  const sessions = sessionCount(row);
  return [`node ${row.name}`, row.zone && `zone ${row.zone}`, levelText(row.level), row.note,
    `${sessions.good} of ${sessions.all} BGP sessions established${ratioNote(sessions)}`, `announces ${plural(row.announced, 'VIP')}`].filter(Boolean).join(', ');
}

export const drawService = (row) => [
  dot(row.level),
  nameOf(row.name),
  row.namespace ? el('span', { class: 'note places' }, cell('namespace', row.namespace), el('span', { class: 'mono' }, nameOf((row.vips ?? []).join(' '))))
    : cell('note', row.note),
  row.rates && (row.rates.packets > 0 || row.rates.drops > 0) && cell('figure rate', `${number(row.rates.packets)} p/s`, 'packets per second'),
  row.endpoints.all > 0 && ratio(row.endpoints, 'endpoints ready'),
  row.endpoints.all === 0 && row.level === 'bad' && cell('figure less', '0/0', 'endpoints ready'),
];

export const labelService = (row) => [
  row.namespace ? `Service ${row.namespace}/${row.name}` : `VIP ${row.name}`, row.namespace && row.vips?.length && `VIP ${row.vips.join(' and ')}`,
  levelText(row.level), row.note, `${row.endpoints.good} of ${row.endpoints.all} endpoints ready`,
  row.announcing !== undefined && `announced by ${plural(row.announcing, 'node')}`,
  row.rates && `${number(row.rates.packets)} packets per second`,
].filter(Boolean).join(', ');

export const drawPod = (row) => [dot(row.level), nameOf(row.name), cell('note', row.note || row.node || '')];

export const labelPod = (row) => [`pod ${row.name}`, row.node && `on ${row.node}`, row.note || 'ready'].join(', ');
