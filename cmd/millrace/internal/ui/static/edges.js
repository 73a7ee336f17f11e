// SPDX-License-Identifier: Apache-2.0

// The lines between the columns, and the path of a traced packet.

import { svg, worse } from './text.js';

/** Drawing draws into an SVG element that covers the columns. */
export class Drawing {
  constructor(element, columns) {
    this.element = element;
    this.columns = columns;
    this.edges = [];
    this.way = null;
  }

  /**
   * set replaces the edges: from and to are [column, id], and strong edges belong to the selection.
   * Others are drawn only if their level is a warning or bad.
   */
  set(edges) {
    this.edges = join(edges.filter((edge) => edge.strong || edge.level === 'bad' || edge.level === 'warning'));
    this.draw();
  }

  /** trace sets the path of a packet: stops are [column, id], reason is that of a drop. */
  trace(way) {
    this.way = way;
    this.draw();
  }

  draw() {
    // Measured once, because it is slow and nothing moves meanwhile.
    this.boxes = new Map(Object.entries(this.columns).map(([name, column]) => [name, column.element.getBoundingClientRect()]));
    for (const column of Object.values(this.columns)) column.measure();
    const frame = this.element.getBoundingClientRect();
    const paths = new Map();
    for (const edge of this.edges) {
      const line = this.line(edge, frame);
      if (!line) continue;
      // Lines to hidden rows coincide at the end of the list; one is drawn.
      const had = paths.get(line);
      paths.set(line, had ? { level: worse(had.level, edge.level), strong: had.strong || edge.strong } : edge);
    }
    const drawn = [...paths].sort(([, a], [, b]) => rankOf(a) - rankOf(b))
      .map(([line, edge]) => svg('path', { d: line, class: `edge ${edge.level} ${edge.strong ? 'strong' : ''}` }));
    this.element.classList.toggle('chosen', this.edges.some((edge) => edge.strong));
    this.element.replaceChildren(this.element.querySelector('title'), ...drawn, ...this.wayParts(frame));
  }

  line(edge, frame) {
    const [from, to] = [this.place(edge.from, frame), this.place(edge.to, frame)];
    if (!from || !to || (!from.seen && !to.seen)) return null;
    return curve(from.right, from.y, to.left, to.y);
  }

  place([column, id], frame) {
    const at = this.columns[column].y(id);
    if (!at) return null;
    const box = this.boxes.get(column);
    return { y: round(at.y - frame.top), seen: at.seen, left: round(box.left - frame.left), right: round(box.right - frame.left) };
  }

  wayParts(frame) {
    if (!this.way) return [];
    const parts = [];
    const stops = this.way.stops.map((stop) => ({ column: stop[0], ...this.place(stop, frame) })).filter((stop) => stop.y !== undefined);
    let last = null;
    for (const [index, stop] of stops.entries()) {
      if (!last) {
        parts.push(svg('path', { class: 'way', d: `M${stop.left - 22} ${stop.y}L${stop.left} ${stop.y}` }));
      } else if (last.column === stop.column) {
        const bend = last.right + 16;
        parts.push(svg('path', { class: 'way', d: `M${last.right} ${last.y}C${bend} ${last.y} ${bend} ${stop.y} ${stop.right} ${stop.y}` }));
      } else {
        parts.push(svg('path', { class: 'way', d: curve(last.right, last.y, stop.left, stop.y) }));
      }
      const drop = this.way.reason && index === stops.length - 1;
      const x = stop.left - 1;
      parts.push(svg('circle', { class: drop ? 'stop drop' : 'stop', cx: x, cy: stop.y, r: 8 }));
      parts.push(svg('text', { class: 'stop', x, y: stop.y + 3.5, 'text-anchor': 'middle' }, drop ? '×' : String(index + 1)));
      last = stop;
    }
    return parts;
  }
}

/** join merges edges between the same rows, such as those of nodes in a group. */
function join(edges) {
  const joined = new Map();
  for (const edge of edges) {
    const key = `${edge.from} ${edge.to}`;
    const had = joined.get(key);
    if (had) {
      had.level = worse(had.level, edge.level);
      had.strong ||= edge.strong;
    } else {
      joined.set(key, { ...edge });
    }
  }
  return [...joined.values()];
}

const round = (value) => Math.round(value * 2) / 2;
const rankOf = (edge) => (edge.strong ? 2 : 0) + (edge.level === 'bad' ? 1 : 0);

function curve(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}
