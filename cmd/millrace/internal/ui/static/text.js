// SPDX-License-Identifier: Apache-2.0

// Elements and texts. Data of the cluster is only used as text, never parsed as HTML.

const svgNamespace = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** el returns an HTML element. Children are elements or texts. */
export function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** svg returns an SVG element. */
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(svgNamespace, name), attributes, children);
}

/** number formats a number with three significant digits and a decimal prefix, as millrace top. */
export function number(value) {
  for (const unit of ['', 'k', 'M', 'G', 'T']) {
    if (value === 0) return '0';
    if (value < 9.995) return value.toFixed(2).replace(/\.?0+$/, '') + unit;
    if (value < 99.95) return value.toFixed(1).replace(/\.0$/, '') + unit;
    if (value < 999.5) return value.toFixed(0) + unit;
    value /= 1000;
  }
  return value.toFixed(0) + 'P';
}

/** ago formats the age of a time. */
export function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** clock formats a time, with the date unless it is today. */
export function clock(time) {
  const at = new Date(time);
  const text = at.toLocaleTimeString('en-GB');
  return at.toDateString() === new Date().toDateString() ? text : `${at.toLocaleDateString('en-CA')} ${text}`;
}

/** plural formats a number and its noun. */
export function plural(count, noun, many = noun + 's') {
  return `${count.toLocaleString('en')} ${count === 1 ? noun : many}`;
}

const levels = { bad: 'not working', warning: 'needs attention', unknown: 'unknown', idle: 'not in use', good: 'healthy' };

/** levelText returns the words for a level. */
export function levelText(level) {
  return levels[level] ?? level;
}

/** ratioText formats the number of good ones and of all, with a question mark if some are unknown. */
export function ratioText(count) {
  const all = count.all.toLocaleString('en');
  if (count.unknown && count.unknown === count.all) return `?/${all}`;
  return `${count.good.toLocaleString('en')}/${all}${count.unknown ? '?' : ''}`;
}

/** ratioClass returns the CSS class of a ratio: less if any is not good, else unknown if any is. */
export const ratioClass = (count) => (count.good + (count.unknown ?? 0) < count.all ? 'less' : count.unknown ? 'unknown' : '');

/** ratioNote returns a note with the number of unknown ones. */
export const ratioNote = (count) => (count.unknown ? `, ${count.unknown} unknown` : '');

export const severity = { bad: 0, warning: 1, unknown: 2, idle: 3, good: 4 };

/** worse returns the worse of two levels. */
export function worse(a, b) {
  return severity[b] < severity[a] ? b : a;
}

/** dot returns a symbol whose colour and shape show a level. */
export function dot(level) {
  return el('span', { class: `dot ${level}`, 'aria-hidden': 'true' });
}

const collator = new Intl.Collator('en', { numeric: true });

/** compare orders node2 before node10. */
export const compare = collator.compare;

/** tail is the number of characters at the end of a name that are always shown. */
const tail = 8;

/** nameOf returns a name that is cut before its end, which distinguishes pods and routers, if the row is too narrow. */
export function nameOf(name) {
  const end = name.length > 2 * tail ? name.slice(-tail) : '';
  return el('span', { class: 'name', title: name }, el('span', { class: 'begin' }, name.slice(0, name.length - end.length)), end && el('span', { class: 'end' }, end));
}

/** serviceText returns name and namespace of a Service, or the name of another object. */
export const serviceText = (id) => {
  const [kind, ...rest] = id.split('/');
  return kind === 'service' ? { name: rest[1], namespace: rest[0] } : { name: rest.join('/') };
};
