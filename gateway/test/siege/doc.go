// SPDX-License-Identifier: Apache-2.0

// Package siege holds a proxy to what it promises under attack: it lives, and other clients are served
// in time. The proxy is the built program in a cgroup of its own (root). Attackers are processes of the
// lowest priority, since they would be on other machines; all is on loopback.
// With -full it also sends floods of frames of HTTP/2.
package siege
