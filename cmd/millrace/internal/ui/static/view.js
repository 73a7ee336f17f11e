// SPDX-License-Identifier: Apache-2.0

// The URL of a view. Its fragment first has the token, then the selected row and the filters, as in
// #service/shop/web?search=is:bad. Browsers do not send fragments to servers.

const filters = ['search', 'namespace', 'layer'];

/** read returns the token, or the selected row and the filters. */
export function read() {
  const text = location.hash.slice(1);
  const [id, query] = text.split('?');
  const values = new URLSearchParams(query ?? '');
  const shown = Object.fromEntries(filters.map((name) => [name, values.get(name) ?? '']));
  if (id.startsWith('token=')) return { token: decodeURIComponent(id.slice('token='.length)), id: '', ...shown };
  return { token: '', id: decodeURIComponent(id), ...shown };
}

/** url returns the URL of a view. */
export function url(shown) {
  const values = new URLSearchParams(filters.filter((name) => shown[name]).map((name) => [name, shown[name]]));
  const query = values.size ? `?${values}` : '';
  return shown.id || query ? `#${encodeURI(shown.id)}${query}` : location.pathname;
}
