// SPDX-License-Identifier: Apache-2.0

// A column is a list box of rows of equal height. Only visible rows are elements, so that the cost
// does not depend on the number of rows.

import { el } from './text.js';

/** rowHeight is the height of a row in style.css with the gap after it. */
export const rowHeight = 28;
const margin = 6;

export class Column {
  /**
   * The options are element, title, draw (returns the children of a row), label (returns the text of
   * a row for screen readers), choose (a row was clicked or entered), leave (an arrow key moves to the
   * next column), and moved (rows changed their positions).
   */
  constructor(options) {
    Object.assign(this, options);
    this.items = [];
    this.places = new Map();
    this.drawn = new Map();
    this.active = null;
    this.selected = null;
    this.bright = null;
    this.heading = el('h2', {}, this.title);
    this.count = el('span', { class: 'dim count' });
    this.levels = el('span', { class: 'levels' });
    this.rows = el('div', { class: 'rows', role: 'presentation' });
    this.empty = el('p', { class: 'empty dim' });
    this.list = el('div', {
      class: 'list', role: 'listbox', tabindex: '0', 'aria-label': this.title,
      on: { scroll: () => this.later(), keydown: (event) => this.key(event), focus: () => this.focused() },
    }, this.rows, this.empty);
    this.element.append(el('div', { class: 'head' }, this.heading, this.count, this.levels), this.list);
    new ResizeObserver(() => this.later()).observe(this.list);
  }

  /** set replaces the items, which have an id each. empty is the text of an empty list. */
  set(items, empty = '') {
    this.items = items;
    this.places = new Map(items.map((item, place) => [item.id, place]));
    this.rows.style.height = `${items.length * rowHeight}px`;
    this.empty.textContent = items.length ? '' : empty;
    if (this.active !== null && !this.places.has(this.active)) this.active = null;
    this.paint();
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => this.paint());
  }

  /** paint renders the visible rows. */
  paint() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const first = Math.max(0, Math.floor(this.list.scrollTop / rowHeight) - margin);
    const last = Math.min(this.items.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / rowHeight) + margin);
    const kept = new Set();
    for (let place = first; place < last; place++) {
      kept.add(this.items[place].id);
      this.paintRow(this.items[place], place);
    }
    for (const [id, drawn] of this.drawn) {
      if (kept.has(id)) continue;
      drawn.element.remove();
      this.drawn.delete(id);
    }
    if (this.active !== null && this.drawn.has(this.active)) {
      this.list.setAttribute('aria-activedescendant', this.drawn.get(this.active).element.id);
    } else {
      this.list.removeAttribute('aria-activedescendant');
    }
    this.moved();
  }

  paintRow(item, place) {
    const look = JSON.stringify(item);
    let drawn = this.drawn.get(item.id);
    if (!drawn) {
      const element = el('div', { role: 'option', id: `row-${this.element.id}-${item.id}` });
      element.addEventListener('click', () => {
        this.active = item.id;
        this.choose(this.items[this.places.get(item.id)]);
      });
      drawn = { element };
      this.drawn.set(item.id, drawn);
      this.rows.append(element);
    }
    if (drawn.look !== look) {
      drawn.look = look;
      drawn.element.replaceChildren(...this.draw(item).filter(Boolean));
      drawn.element.setAttribute('aria-label', this.label(item));
      drawn.element.title = item.note ?? '';
    }
    const classes = ['row', item.type ?? '', item.id === this.active ? 'active' : '', item.id === this.selected ? 'selected' : '',
      this.bright && !this.bright.has(item.id) ? 'faint' : ''].filter(Boolean).join(' ');
    if (drawn.element.className !== classes) drawn.element.className = classes;
    drawn.element.setAttribute('aria-selected', String(item.id === this.selected));
    drawn.element.setAttribute('aria-setsize', this.items.length);
    drawn.element.setAttribute('aria-posinset', place + 1);
    if (item.open !== undefined) drawn.element.setAttribute('aria-expanded', String(item.open));
    drawn.element.style.top = `${place * rowHeight}px`;
  }

  /** measure records the position of the list, for y. */
  measure() {
    this.box = this.list.getBoundingClientRect();
    this.top = this.list.scrollTop;
  }

  /** y returns the middle of a row on the page, clamped to the list; undefined without such a row. */
  y(id) {
    const place = this.places.get(id);
    if (place === undefined) return undefined;
    const { box } = this;
    const middle = (place + 0.5) * rowHeight - this.top;
    return { y: box.top + Math.min(Math.max(middle, 2), box.height - 2), seen: middle >= 0 && middle <= box.height };
  }

  /** show scrolls to a row. */
  show(id) {
    const place = this.places.get(id);
    if (place === undefined) return;
    const top = place * rowHeight;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    if (top + rowHeight > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + rowHeight - this.list.clientHeight;
  }

  focused() {
    if (this.active === null && this.items.length) this.go(this.places.get(this.selected) ?? 0);
  }

  go(place) {
    const item = this.items[Math.min(Math.max(place, 0), this.items.length - 1)];
    if (!item) return;
    this.active = item.id;
    this.show(item.id);
    this.paint();
  }

  key(event) {
    const place = this.places.get(this.active) ?? -1;
    const screen = Math.max(1, Math.floor(this.list.clientHeight / rowHeight) - 1);
    const moves = { ArrowDown: place + 1, ArrowUp: place - 1, PageDown: place + screen, PageUp: place - screen, Home: 0, End: this.items.length - 1 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      this.go(moves[event.key]);
    } else if ((event.key === 'Enter' || event.key === ' ') && place >= 0) {
      this.choose(this.items[place]);
    } else if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
      this.leave(event.key === 'ArrowLeft' ? -1 : 1);
    } else {
      return;
    }
    event.preventDefault();
  }
}
