// SPDX-License-Identifier: Apache-2.0

// Package link has tests run a router and a node in network namespaces of their own, with one link
// between them. It needs root.
package link

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// Addresses of both ends.
var (
	RouterIPv4 = netip.MustParseAddr("198.51.100.1")
	NodeIPv4   = netip.MustParseAddr("198.51.100.2")
	RouterIPv6 = netip.MustParseAddr("2001:db8::1")
	NodeIPv6   = netip.MustParseAddr("2001:db8::2")
)

var links atomic.Int32

// Link is the link. It is eth0 at both ends.
type Link struct {
	t testing.TB
	// RouterSpace and NodeSpace are the names of the namespaces.
	RouterSpace, NodeSpace string
}

// New makes the namespaces, whose names begin with the prefix, and removes them after the test.
func New(t testing.TB, prefix string) *Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: it makes network namespaces and runs routers in them")
	}
	id := fmt.Sprintf("%d-%d", os.Getpid(), links.Add(1))
	l := &Link{t: t, RouterSpace: prefix + "-r-" + id, NodeSpace: prefix + "-n-" + id}
	t.Cleanup(func() {
		for _, namespace := range []string{l.RouterSpace, l.NodeSpace} {
			_ = exec.Command("ip", "netns", "delete", namespace).Run()
		}
	})
	for _, namespace := range []string{l.RouterSpace, l.NodeSpace} {
		l.Run("ip", "netns", "add", namespace)
		l.Run("ip", "-n", namespace, "link", "set", "lo", "up")
	}
	l.Run("ip", "link", "add", "eth0", "netns", l.NodeSpace, "type", "veth", "peer", "name", "eth0", "netns", l.RouterSpace)
	l.address(l.RouterSpace, RouterIPv4, RouterIPv6)
	l.address(l.NodeSpace, NodeIPv4, NodeIPv6)
	return l
}

func (l *Link) address(namespace string, v4, v6 netip.Addr) {
	l.t.Helper()
	l.Run("ip", "-n", namespace, "address", "add", v4.String()+"/24", "dev", "eth0")
	l.Run("ip", "-n", namespace, "address", "add", v6.String()+"/64", "dev", "eth0", "nodad")
	l.Run("ip", "-n", namespace, "link", "set", "eth0", "up")
}

// Run runs a command. A failure ends the test.
func (l *Link) Run(command ...string) {
	l.t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}
