// SPDX-License-Identifier: Apache-2.0

// The panel: all problems, or the details of the selection.

import { ago, clock, compare, dot, el, levelText, number, plural, ratioNote, serviceText, severity, svg } from './text.js';
import { charts } from './layers.js';
import { liveMissing, silent } from './notices.js';
import { ask } from './store.js';
import { sessionCount } from './rows.js';
import { table, timeline } from './tables.js';

/** least is the minimum interval of queries to agents in ms; slow answers increase it. */
const least = 10000;
const restFactor = 9;
/** patience is the time in ms after which the panel shows that it waits for an answer. */
const patience = 2000;

/** Panel draws into an element. The options are element, store, select, traced, loaded and announced. */
export class Panel {
  constructor(options) {
    Object.assign(this, options);
    this.id = '';
    this.parts = new Map();
  }

  /** open shows the details of a row, or all problems if id is empty. */
  open(id) {
    if (id === this.id && this.element.childElementCount) return this.refresh();
    this.controller?.abort();
    this.controller = new AbortController();
    clearTimeout(this.timer);
    this.id = id;
    this.details = this.answer = this.timeline = this.failure = null;
    this.waiting = '';
    this.parts.clear();
    // If the removed details had the focus, it moves to the start of the new ones.
    const refocus = this.refocus(this.element);
    this.element.replaceChildren();
    refocus();
    this.element.scrollTop = 0;
    this.refresh();
    if (id.startsWith('node/') || id.startsWith('service/')) this.askAgents(this.controller.signal);
  }

  /** refresh updates the panel after a change of the store. */
  async refresh() {
    if (!this.id) return this.overview();
    if (this.id.startsWith('zone/')) return this.zone();
    const { signal } = this.controller;
    try {
      const details = await ask('api/details', { id: this.id }, signal);
      this.details = details;
      this.failure = null;
    } catch (error) {
      if (signal.aborted) return;
      this.failure = error.message;
    }
    this.loaded(this.details);
    this.drawDetails();
  }

  async askAgents(signal) {
    const began = performance.now();
    const asked = new Date();
    // A fast answer needs no message.
    const slow = setTimeout(() => {
      this.waiting = `Queried at ${clock(asked)}; no answer yet.`;
      this.drawDetails();
    }, patience);
    let told = null;
    let failure = '';
    try {
      told = await ask('api/ask', { id: this.id }, signal);
      failure = (told.warnings ?? []).join('; ');
    } catch (error) {
      failure = error.message;
    } finally {
      clearTimeout(slow);
    }
    if (signal.aborted) return;
    const rest = Math.max(least, restFactor * (performance.now() - began));
    this.waiting = '';
    this.answer = this.merge(told, failure, asked, rest);
    this.announced(this.id, this.answer.vips);
    this.drawDetails();
    const again = () => {
      if (document.hidden) this.timer = setTimeout(again, least);
      else this.askAgents(signal);
    };
    this.timer = setTimeout(again, rest);
  }

  /**
   * merge merges an answer into the previous one, whose values replace missing ones and are shown with
   * their time.
   */
  merge(told, failure, asked, rest) {
    const had = this.answer;
    if (!failure) return { ...told, at: asked };
    const kept = {};
    for (const key of ['vips', 'sessions', 'rates']) if (!told?.[key] && had?.[key]) kept[key] = had[key];
    const since = had?.since ?? asked;
    const at = told && !Object.keys(kept).length ? asked : had?.at;
    const parts = [`Some queries have failed since ${clock(since)}.`, `Last error: ${failure}.`,
      Object.keys(kept).length > 0 && `Values from ${clock(at)} are shown.`,
      `The page retries at ${clock(new Date(Date.now() + rest))}.`];
    return { ...told, ...kept, at, since, failure: parts.filter(Boolean).join(' ') };
  }

  /** part replaces a part of the panel if its data changed. */
  part(name, data, make) {
    const look = JSON.stringify(data ?? null);
    const had = this.parts.get(name);
    if (had?.look === look) return;
    const element = el('div', { class: 'part' }, ...[make(data)].flat());
    const refocus = this.refocus(had?.element);
    if (had) had.element.replaceWith(element);
    else this.element.append(element);
    this.parts.set(name, { look, element });
    refocus();
  }

  /** refocus returns a function that focuses the panel after the element was removed, if the element had the focus. */
  refocus(element) {
    const had = document.activeElement;
    if (!element?.contains(had)) return () => {};
    const focusVisible = had.matches(':focus-visible');
    return () => this.element.focus({ focusVisible });
  }

  overview() {
    const { head, problems } = this.store;
    if (!head) return;
    const list = [...problems.values()].sort((a, b) => severity[a.level] - severity[b.level] || compare(a.object, b.object));
    const rows = [this.store.routers, this.store.nodes, this.store.services].flatMap((of) => [...of.values()]);
    const unknown = Boolean(head.refused?.length) || rows.some((row) => row.level === 'unknown');
    this.part('title', [list.length, list.map((problem) => problem.level), head.away?.seen, unknown], () => title(
      list.length ? (list.some((problem) => problem.level === 'bad') ? 'bad' : 'warning') : head.away || unknown ? 'unknown' : 'good',
      list.length ? plural(list.length, 'problem') : unknown && !head.away ? 'Some state is unknown' : 'No problems', head.away ? `at ${clock(head.away.seen)}` : ''));
    this.part('refused', [head.refused, liveMissing(head), silent(head)], ([, ...notes]) => [
      notes.filter(Boolean).map((note) => el('p', { class: 'notice' }, note)),
      head.refused?.length && section('Not readable', head.refused.map((refusal) => el('div', { class: 'item' },
        el('b', {}, refusal.kind), el('p', { class: 'dim' }, refusal.message)))),
    ]);
    this.part('next', head.next, (next) => next?.length && section('Next steps', el('ol', {}, next.map((step) => el('li', {}, step)))));
    this.part('problems', list.slice(0, 200), (shown) => el('div', { class: 'problems' }, shown.map((problem) => this.problem(problem)),
      list.length > shown.length && el('p', { class: 'dim' }, `… and ${list.length - shown.length} more`)));
    const { history } = this.store;
    const quiet = !list.length && !head.away && history.length > 0;
    this.part('history', quiet ? history.at(-1) : null, () => quiet && section(
      `Rates since ${clock(history[0][0])}`, charts(history, svg)));
    this.part('drops', [head.drops, head.window], () => head.drops && section('Dropped packets per second', drops(head.drops)));
  }

  problem(problem) {
    const many = problem.count > 1;
    const kind = problem.object.split('/')[0];
    const content = [
      el('span', { class: 'line' }, dot(problem.level), el('b', {}, many ? plural(problem.count, kind) : titleOf(problem)), el('span', { class: 'dim' },
        problem.reason, problem.since && ` for ${ago(problem.since)}`)),
      el('span', { class: 'message' }, many && `${titleOf(problem)}: `, problem.message)];
    if (many) {
      const shown = problem.rows ?? [];
      return el('div', { class: 'item' }, content, el('span', { class: 'message' }, commas(shown.map((row) => link(serviceText(row).name, row, this.select))),
        problem.count > shown.length && shown.length > 0 && [' and ', link(`${problem.count - shown.length} more`, '', () => this.find(problem.reason.toLowerCase()))]));
    }
    if (!problem.row || problem.row === this.id) return el('div', { class: 'item' }, content);
    return el('button', { type: 'button', class: 'item', on: { click: () => this.select(problem.row) } }, content);
  }

  zone() {
    const name = this.id.slice('zone/'.length);
    const nodes = [...this.store.nodes.values()].filter((node) => (node.zone ?? '') === name);
    const counts = nodes.map(sessionCount);
    const total = (name) => counts.reduce((n, c) => n + c[name], 0);
    const sum = { good: total('good'), all: total('all'), unknown: total('unknown') };
    const down = nodes.flatMap((node) => (node.sessions ?? []).filter((session) => !session.up && !session.stale)
      .map((session) => ({ node: node.name, peer: session.peer, state: session.state, bfd: session.bfd })));
    this.loaded(null);
    const level = down.length ? 'warning' : sum.unknown ? 'unknown' : 'good';
    this.part('title', [name, level], () => this.head(level, name || 'no zone', 'Zone'));
    this.part('facts', [nodes.length, sum], () => facts([
      { name: 'Nodes', text: String(nodes.length) },
      { name: 'BGP sessions', text: `${sum.good} of ${sum.all} established, ${down.length} down${ratioNote(sum)}` },
    ]));
    this.part('down', down, () => down.length > 0 && section(plural(down.length, 'session') + ' down', sessionTable(down, this.select)));
    const wrong = nodes.filter((node) => node.level !== 'good').slice(0, 200);
    this.part('nodes', wrong, () => wrong.length > 0 && section('Nodes with problems', wrong.map((node) => this.problem(
      { level: node.level, object: node.name, reason: node.reason, message: node.note ?? '', row: node.id }))));
  }

  head(level, name, kind) {
    return el('div', { class: 'title' },
      el('button', { type: 'button', class: 'back', 'aria-label': 'Back to all problems', on: { click: () => this.select('') } }, '←'),
      title(level, name, `${kind}, ${levelText(level)}`));
  }

  drawDetails() {
    const row = this.store.row(this.id);
    const [kind, ...rest] = this.id.split('/');
    const name = rest.join('/');
    const kinds = { node: 'Node', router: 'Router', service: 'Service', vip: 'VIP' };
    const shown = serviceText(this.id);
    this.part('title', [row?.level, name], () => this.head(row?.level ?? 'unknown', shown.name, kinds[kind] + (shown.namespace ? ` in ${shown.namespace}` : '')));
    this.part('failure', this.failure, (failure) => failure && el('p', { class: 'notice' }, failure));
    const details = this.details;
    if (!details) return;
    const problems = this.problems(row);
    this.part('problems', problems, () => problems.length > 0 && section(
      row?.level === 'bad' && kind === 'service' ? 'Why not' : 'Problems', problems.map((problem) => this.problem(problem))));
    this.part('facts', details.facts, facts);
    this.part('rates', [row?.rates, details.frontends, this.answer?.rates, this.store.head?.window], () => this.rates(row));
    this.part('drops', [details.drops, this.answer?.rates?.drops], () => {
      const found = details.drops ?? this.answer?.rates?.drops;
      return found && (Object.keys(found).length > 0 || details.drops) && section('Dropped packets per second', drops(found));
    });
    this.part('announced', this.answer?.vips, (vips) => vips && section('Announcements', vips.map((vip) => announcements(vip, this.select))));
    this.part('sessions', [details.sessions, this.answer?.sessions], () => details.sessions && section('BGP and BFD sessions',
      sessionTable(merged(details.sessions, this.answer?.sessions), this.select, kind)));
    this.part('agents', this.waiting || this.answer?.failure, (text) => text && el('p', { class: 'notice', role: 'status' }, text));
    if (kind === 'service' && row?.vips?.length && !this.parts.has('trace')) this.part('trace', 1, () => this.traceForm(row));
    if (kind === 'service' && !this.parts.has('why')) this.part('why', 1, () => this.whyForm(name));
    this.part('pods', details.pods, (pods) => pods && section(`Endpoints: ${pods.filter((pod) => pod.ready).length} of ${pods.length} ready`,
      podTable(pods.slice(0, 100), this.select), pods.length > 100 && el('p', { class: 'dim' }, `… and ${pods.length - 100} more`)));
    this.part('conditions', details.conditions, (conditions) => conditions && section('Conditions', conditionTable(conditions)));
    this.part('omitted', details.omitted, (omitted) => omitted && el('p', { class: 'dim' }, `${omitted} more are not shown`));
  }

  /** problems lists the problems of objects and agents, or the note of the row. */
  problems(row) {
    const list = [...(this.details.problems ?? [])];
    for (const problem of this.answer?.problems ?? []) {
      if (!list.some((known) => known.message === problem.message)) {
        list.push({ level: row?.level === 'good' ? 'warning' : row?.level ?? 'warning', object: `${problem.kind}/${problem.name}`, reason: problem.reason, message: problem.message });
      }
    }
    if (!list.length && row?.note && row.level !== 'good') list.push({ level: row.level, object: row.name, reason: row.reason ?? '', message: row.note });
    return list;
  }

  rates(row) {
    const frontends = this.details.frontends ?? this.answer?.rates?.frontends?.map((from) => ({ ...from, rates: {
      packets: from.packetsPerSecond, bits: from.bitsPerSecond, connections: from.connectionsPerSecond, drops: from.dropsPerSecond } }));
    if (!frontends?.length) return null;
    const sorted = [...frontends].sort((a, b) => b.rates.packets - a.rates.packets);
    const window = this.details.frontends ? this.store.head?.window : this.answer?.rates?.windowSeconds;
    const all = row?.rates ?? sorted.reduce((sum, from) => {
      for (const key of Object.keys(sum)) sum[key] += from.rates[key];
      return sum;
    }, { connections: 0, packets: 0, bits: 0, drops: 0 });
    return section(`Traffic per second${window ? `, means over ${number(window)} s` : ''}`,
      table(['VIP', 'Conn', 'Packets', 'Bits', 'Drops'], [
        ...(sorted.length > 1 ? [['all', ...four(all)]] : []),
        ...sorted.slice(0, 20).map((from) => [`${from.vip.includes(':') ? `[${from.vip}]` : from.vip}:${from.port} ${from.protocol}`, ...four(from.rates)])], [1, 2, 3, 4]));
  }

  traceForm(row) {
    const output = el('div', { role: 'status' });
    const port = /\d+/.exec(this.details.facts?.find((fact) => fact.name === 'Ports')?.text ?? '')?.[0] ?? '80';
    const protocol = /\/(\w+)/.exec(this.details.facts?.find((fact) => fact.name === 'Ports')?.text ?? '')?.[1]?.toLowerCase() ?? 'tcp';
    const six = row.vips[0].includes(':');
    const source = input('source', six ? '[2001:db8::7]:40000' : '198.51.100.7:40000', 'Source address and port');
    const destination = input('destination', six ? `[${row.vips[0]}]:${port}` : `${row.vips[0]}:${port}`, 'VIP and port');
    const protocols = el('select', { name: 'protocol', 'aria-label': 'Protocol' },
      ['tcp', 'udp', 'sctp'].map((name) => el('option', { value: name, selected: name === protocol }, name)));
    const node = input('node', '', 'Ingress node, empty for the first');
    node.placeholder = 'ingress node: the first';
    const form = el('form', { class: 'ask', 'aria-label': 'Trace a packet', on: { submit: (event) => {
      event.preventDefault();
      this.trace(new FormData(form), output);
    } } }, source, destination, protocols, node, el('button', {}, 'Trace'));
    return section('Trace a packet', form, output);
  }

  async trace(data, output) {
    output.replaceChildren(el('p', { class: 'dim' }, 'Querying the nodes …'));
    const { id } = this;
    try {
      const way = await ask('api/trace', Object.fromEntries([...data].map(([key, value]) => [key, value.trim()])), this.controller.signal);
      output.replaceChildren(...way.hops.map((hop, index) => el('div', { class: 'hop' },
        el('b', {}, `${index + 1}  ${hop.node}`), el('span', { class: 'dim' }, ` in by ${hop.interface}`),
        el('dl', {}, hop.steps.flatMap((step) => [el('dt', {}, step.name), el('dd', {}, step.text)])))),
      ...[way.pod && el('p', {}, 'Pod ', el('b', {}, way.pod)), way.error && el('p', { class: 'notice' }, way.error)].filter(Boolean));
      this.traced(id, way);
    } catch (error) {
      if (error.name !== 'AbortError') output.replaceChildren(el('p', { class: 'notice' }, error.message));
    }
  }

  whyForm(service) {
    const output = el('div', { role: 'status' });
    const at = input('at', 'now', 'Time: now, or 03:12');
    const around = el('select', { name: 'around', 'aria-label': 'How long before and after' },
      [['5m', '± 5 min'], ['30m', '± 30 min'], ['3h', '± 3 h'], ['24h', '± 24 h']].map(([value, text]) => el('option', { value }, text)));
    const form = el('form', { class: 'ask', 'aria-label': 'History', on: { submit: async (event) => {
      event.preventDefault();
      output.replaceChildren(el('p', { class: 'dim' }, 'Querying the nodes …'));
      try {
        const told = await ask('api/why', { service, at: at.value.trim(), around: around.value }, this.controller.signal);
        output.replaceChildren(...timeline(told));
      } catch (error) {
        if (error.name !== 'AbortError') output.replaceChildren(el('p', { class: 'notice' }, error.message));
      }
    } } }, at, around, el('button', {}, 'Show'));
    return section('History', form, output);
  }
}

/** titleOf returns the name of the object's row, and the object's own name if it differs. */
function titleOf(problem) {
  const { name, namespace } = serviceText(problem.row ?? '');
  return namespace ? `${name} in ${namespace}` : problem.object;
}

const title = (level, name, more) => el('div', { class: 'what' }, dot(level), el('h2', {}, name), more && el('span', { class: 'dim' }, more));

const section = (name, ...content) => el('section', { 'aria-label': name }, el('h3', {}, name), ...content);

const facts = (list) => list?.length > 0 && el('dl', { class: 'facts' }, list.flatMap((fact) => [el('dt', {}, fact.name), el('dd', {}, fact.text)]));

const input = (name, value, label) => el('input', { name, value, 'aria-label': label, autocomplete: 'off', spellcheck: 'false' });

const four = (rates) => [number(rates.connections), number(rates.packets), number(rates.bits), number(rates.drops)];

/** drops returns bars of drop reasons, the most frequent first. */
function drops(reasons) {
  const list = Object.entries(reasons).filter(([, rate]) => rate > 0).sort(([, a], [, b]) => b - a);
  if (!list.length) return el('p', { class: 'dim' }, 'none');
  return el('table', { class: 'bars' }, el('tbody', {}, list.map(([reason, rate]) => {
    const bar = el('span', { class: 'bar', 'aria-hidden': 'true' });
    bar.style.width = `${Math.max(1, 100 * rate / list[0][1])}%`;
    return el('tr', {}, el('th', { scope: 'row' }, reason), el('td', {}, bar), el('td', { class: 'figure' }, number(rate)));
  })));
}

const link = (text, id, select) => el('button', { type: 'button', class: 'link', on: { click: () => select(id) } }, text);

/** merged adds the agent's data to the reported sessions. */
function merged(reported, asked) {
  const more = new Map((asked ?? []).map((session) => [session.peer, session]));
  return reported.map((session) => {
    const known = more.get(session.peer);
    return known ? { ...session, flaps: known.flaps, lastError: known.lastError, routesSent: known.routesSent } : session;
  });
}

function sessionTable(sessions, select, kind) {
  return el('table', {}, el('thead', {}, el('tr', {},
    [kind === 'node' ? 'Router' : 'Node', 'BGP', 'BFD', 'Since'].map((heading) => el('th', { scope: 'col' }, heading)))),
  el('tbody', {}, sessions.map((session) => {
    const level = (up) => (session.stale ? 'unknown' : up ? 'good' : 'bad');
    const why = [session.message, session.lastError && session.lastError !== session.message && `last error: ${session.lastError}`, session.bfdMessage]
      .filter(Boolean).join('; ');
    const figures = [session.flaps > 0 && plural(session.flaps, 'flap'), session.routesSent > 0 && plural(session.routesSent, 'route')].filter(Boolean).join(', ');
    return [el('tr', {},
      el('td', {}, kind === 'node' ? link(session.peer, `router/${session.peer}`, select) : link(session.node, `node/${session.node}`, select),
        kind === undefined && el('span', { class: 'dim' }, ` ${session.peer}`)),
      el('td', {}, dot(level(session.up ?? false)), session.state),
      el('td', {}, session.bfd ? [dot(level(session.bfd === 'Up')), session.bfd] : el('span', { class: 'dim' }, '–')),
      el('td', { class: 'dim' }, session.since ? ago(session.since) : '')),
    (why || figures) && el('tr', { class: 'more' }, el('td', { colspan: '4' }, [why, figures].filter(Boolean).join(' · ')))].filter(Boolean);
  }).flat()));
}

function announcements(vip, select) {
  const by = vip.announcedBy ?? [];
  const withheld = vip.withheldBy ?? [];
  const count = by.reduce((sum, group) => sum + group.nodes.length, 0);
  return el('div', { class: 'item' },
    el('span', { class: 'line' }, dot(count ? 'good' : withheld.length ? 'bad' : 'unknown'), el('b', { class: 'mono' }, vip.address),
      el('span', { class: 'dim' }, count ? `announced by ${plural(count, 'node')}` : withheld.length ? 'announced by no node' : 'no node has answered')),
    by.map((group) => el('span', { class: 'message' }, `to ${group.peers.join(', ')}: `, nodeNames(group.nodes, select))),
    withheld.map((group) => el('span', { class: 'message' }, el('b', {}, group.reason ?? 'withheld'), ` ${group.message ?? ''} `, nodeNames(group.nodes, select))));
}

/** nodeNames returns links to the nodes, or the first five of many names. */
function nodeNames(nodes, select) {
  if (nodes.length > 5) return el('span', { class: 'dim' }, commas(nodes.slice(0, 5)), ` and ${(nodes.length - 5).toLocaleString('en')} more`);
  return commas(nodes.map((node) => link(node, `node/${node}`, select)));
}

/** commas separates names with commas, after which lines may break. */
const commas = (names) => names.flatMap((name, index) => [index > 0 && ' ', el('span', { class: 'unit' }, name, index < names.length - 1 && ',')]);

const podTable = (pods, select) => table(['Pod', 'Address', 'Node'], pods.map((pod) => [
  [dot(pod.ready ? 'good' : pod.terminating ? 'idle' : 'warning'), pod.name], el('span', { class: 'mono' }, pod.address),
  pod.node ? link(pod.node, `node/${pod.node}`, select) : '']));

function conditionTable(conditions) {
  return el('table', {}, el('tbody', {}, conditions.map((condition) => [
    el('tr', {}, el('th', { scope: 'row' }, condition.type), el('td', {}, condition.status), el('td', { class: 'dim' }, condition.reason),
      el('td', { class: 'dim figure' }, condition.since ? ago(condition.since) : '')),
    condition.message && el('tr', { class: 'more' }, el('td', { colspan: '4' }, condition.message))].filter(Boolean)).flat()));
}
