// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/dad"
)

// worst is an observation with all failures and long messages.
func worst(vips int) Observation {
	long := strings.Repeat("0123456789", 100)
	name := strings.Repeat("n", 253) // The longest name of an object.
	o := Observation{
		Version: "v1", Programmed: vips, Problems: problems(1000, "Unsupported"), ProgramError: errors.New(strings.Repeat(long, 50)),
	}
	for i := range o.Problems {
		o.Problems[i].Message = long
		if i%2 == 0 {
			// The maximum lengths of a namespace's and a Service's name.
			o.Problems[i].Reason = millracev1beta1.ReasonMapFull
			o.Problems[i].Object.Namespace = name[:63]
			o.Problems[i].Object.Name = (fmt.Sprint("s", i, "-") + name)[:63]
		}
	}
	for i := range 256 {
		suffix := fmt.Sprint(i)
		o.Sessions = append(o.Sessions, millracev1beta1.SessionStatus{
			Peer: name[len(suffix):] + suffix, Address: "2001:db8:1111:2222:3333:4444:5555:6666",
			State: millracev1beta1.SessionOpenConfirm, Since: &earlier, Message: long,
		})
		o.Duplicates = append(o.Duplicates, dad.Holder{
			Probe:        dad.Probe{Interface: "interface" + suffix, Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})},
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}, Withheld: i%2 == 1,
		})
		o.Interfaces = append(o.Interfaces, millracev1beta1.InterfaceStatus{
			Name: "interface" + suffix, XDPMode: millracev1beta1.XDPNone, Message: long,
		})
	}
	reasons := []string{
		announce.ReasonNoService, announce.ReasonNotSelected, announce.ReasonNoPeer, announce.ReasonNoFrontend,
		announce.ReasonNotAttached, announce.ReasonNotProgrammed, announce.ReasonNoEndpoints,
		announce.ReasonNoLocalEndpoint, announce.ReasonNoNextHop,
	}
	address := netip.MustParseAddr("2001:db8:cafe:1111:2222:3333:4444:1000")
	for i := range vips {
		decision := announce.Decision{VIP: address}
		if kind := i % (len(reasons) + 1); kind < len(reasons) {
			decision.Reason, decision.Message = reasons[kind], long
		} else {
			decision.Peers = []string{"nobody"}
		}
		o.Decisions = append(o.Decisions, decision)
		address = address.Next()
	}
	return o
}

// The report's size is bounded regardless of VIPs and failures, far below etcd's limit (1.5 MiB).
func TestReportIsBounded(t *testing.T) {
	const most = 64 << 10
	sizes := map[int]int{}
	for _, vips := range []int{100, 10_000} {
		o := worst(vips)
		status := build(o, reportStatus{}, 1, earlier)
		content, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		sizes[vips] = len(content)
		t.Logf("%d VIPs: %d bytes", vips, len(content))
		if len(content) > most {
			t.Errorf("%d VIPs: %d bytes, want at most %d", vips, len(content), most)
		}
		counted := status.VIPs.Announced
		for _, withheld := range status.VIPs.Withheld {
			counted += withheld.Count
		}
		if int(counted) != vips || len(status.Exceptions) != maxExceptions {
			t.Errorf("%d VIPs: %d counted, %d exceptions", vips, counted, len(status.Exceptions))
		}
		// Waiting VIPs come first, then by address.
		if first := status.Duplicates[0]; len(status.Duplicates) != maxDuplicates || !first.Withheld || first.Address != "203.0.113.1" {
			t.Errorf("%d VIPs: %d hosts reported, first: %+v", vips, len(status.Duplicates), first)
		}
		if again := build(o, status, 1, later); !equality.Semantic.DeepEqual(again, status) {
			t.Errorf("%d VIPs: an unchanged observation results in a different report", vips)
		}
	}
	if growth := sizes[10_000] - sizes[100]; growth > 100 {
		t.Errorf("the report size depends on the number of VIPs: %v bytes", sizes)
	}
}

func TestExceptions(t *testing.T) {
	status := build(worst(1000), reportStatus{}, 1, earlier)
	var addresses []netip.Addr
	for _, exception := range status.Exceptions {
		addresses = append(addresses, netip.MustParseAddr(exception.Address))
		switch exception.Reason {
		case announce.ReasonNotAttached, announce.ReasonNotProgrammed, announce.ReasonNoNextHop, "NotEstablished":
		default:
			t.Errorf("%s: unexpected exception with reason %s", exception.Address, exception.Reason)
		}
		if len(exception.Message) > 256 {
			t.Errorf("%s: message of %d bytes exceeds the limit of the CRD", exception.Address, len(exception.Message))
		}
	}
	if !slices.IsSortedFunc(addresses, netip.Addr.Compare) || addresses[len(addresses)-1].As16()[15] > 100 {
		t.Errorf("addresses of exceptions = %v", addresses)
	}
}

func TestFaultsFirst(t *testing.T) {
	o := worst(0)
	for i := range o.Sessions[:250] {
		o.Sessions[i].State = millracev1beta1.SessionEstablished
		o.Interfaces[i].XDPMode = millracev1beta1.XDPNative
	}
	status := build(o, reportStatus{}, 1, earlier)
	if status.Sessions[5].State != millracev1beta1.SessionOpenConfirm || status.Sessions[6].State != millracev1beta1.SessionEstablished ||
		status.Interfaces[5].XDPMode != millracev1beta1.XDPNone || status.Interfaces[6].XDPMode != millracev1beta1.XDPNative {
		t.Errorf("first sessions %+v and interfaces %+v", status.Sessions[:7], status.Interfaces[:7])
	}
	if len(status.Sessions) != maxSessions || len(status.Interfaces) != maxInterfaces || status.XDPModes != "Native,None" {
		t.Errorf("%d sessions, %d interfaces, modes %q", len(status.Sessions), len(status.Interfaces), status.XDPModes)
	}
}

func TestTruncation(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"short", "short"}, {"exactly 12 b", "exactly 12 b"}, {"more than 12 b", "more tha ..."}, {"umlauts äöüäöü", "umlauts  ..."},
	} {
		if got := cut(test.text, 12); got != test.want {
			t.Errorf("cut(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}
