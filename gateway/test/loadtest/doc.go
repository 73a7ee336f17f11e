// SPDX-License-Identifier: Apache-2.0

// Package loadtest tests a proxy under attack: it must not crash, and must serve other clients in time. The
// proxy is the built program in its own cgroup (root). Attackers are processes of the lowest priority,
// because in production they run on other machines; everything is on loopback. With -full the tests
// include floods of HTTP/2 frames.
package loadtest
