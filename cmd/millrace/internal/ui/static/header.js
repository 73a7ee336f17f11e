// SPDX-License-Identifier: Apache-2.0

// The header: totals, layers and namespaces.

import { compare, el, number, ratioClass, ratioText } from './text.js';

const byId = (id) => document.getElementById(id);

/** totals shows the counts and rates of the cluster, and the number of problems in the page title. */
export function totals(store) {
  const { head } = store;
  byId('cluster').textContent = head.cluster;
  document.title = `${store.problems.size ? `(${store.problems.size}) ` : ''}${head.cluster} – Millrace`;
  const ratio = (name, count) => count.all > 0 && [el('dt', {}, name),
    el('dd', { class: ratioClass(count) || null, title: count.unknown ? `${count.unknown} unknown` : null }, ratioText(count))];
  const rate = (name, value) => head.rates && [el('dt', { class: 'rate' }, name), el('dd', { class: 'rate' }, number(value))];
  const parts = [
    ratio('Nodes', head.nodes), ratio('BGP', head.sessions), ratio('BFD', head.bfd), ratio('VIPs', head.vips), ratio('Endpoints', head.endpoints),
    rate('Conn/s', head.rates?.connections), rate('Packets/s', head.rates?.packets), rate('Bits/s', head.rates?.bits), rate('Drops/s', head.rates?.drops),
  ].filter(Boolean).map((pair) => el('div', {}, ...pair));
  byId('totals').replaceChildren(...parts);
}

/** namespaces lists the namespaces of Services for selection and marks the open layer. */
export function namespaces(store, namespace, layer) {
  const field = byId('namespace');
  const all = [...new Set([...store.services.values()].map((row) => row.namespace).filter(Boolean))].sort(compare);
  if (namespace && !all.includes(namespace)) all.unshift(namespace);
  const look = all.join();
  if (field.dataset.look !== look) {
    field.dataset.look = look;
    field.replaceChildren(el('option', { value: '' }, 'All namespaces'), ...all.map((name) => el('option', { value: name }, name)));
  }
  field.value = namespace;
  for (const link of document.querySelectorAll('#layers a')) link.setAttribute('aria-current', link.dataset.layer === layer ? 'page' : 'false');
}
