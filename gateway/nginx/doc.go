// SPDX-License-Identifier: Apache-2.0

// Package nginx reads the annotations of ingress-nginx: what an Ingress asks for by them, and what
// of it is not carried out. It is pure, and knows nothing of how it is carried out.
package nginx
