// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/test/pathmtu"
	"github.com/millrace-lb/millrace/test/isolated"
)

// Forged ICMP errors about BFD packets do not reduce the path MTU to other hosts.
func TestListenersLearnNoPathMTU(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	pathmtu.Link(t)
	for local, remote := range map[netip.Addr]netip.Addr{pathmtu.Local4: pathmtu.Remote4, pathmtu.Local6: pathmtu.Remote6} {
		k := kind{v6: local.Is6()}
		fd, err := listen(k, admission{})
		if err != nil {
			t.Fatal(err)
		}
		pathmtu.Forge(t, netip.AddrPortFrom(local, uint16(k.port())), netip.AddrPortFrom(remote, 6081))
		if mtu := pathmtu.Learned(t, remote); mtu != 0 {
			t.Errorf("the kernel learned a path MTU to %s: %d", remote, mtu)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
}
