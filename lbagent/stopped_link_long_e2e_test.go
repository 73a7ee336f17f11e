// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// elsewhereMAC is another host with a VIP's address.
const elsewhereMAC = "02:00:00:00:00:99"

// An L2 agent that is stopped while a VIP moves to another host does not claim it on resumption, but claims a
// new VIP.
func TestStoppedOnLink(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	advertisement := &millracev1beta1.VIPAdvertisement{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "all"}, advertisement); err != nil {
		t.Fatal(err)
	}
	advertisement.Spec.L2 = &millracev1beta1.L2Advertisement{Interfaces: []string{"eth0"}}
	if err := w.client.Update(t.Context(), advertisement); err != nil {
		t.Fatal(err)
	}
	device, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	own := device.HardwareAddr.String()
	w.hasElsewhere(vip)
	a := w.start()
	w.Await(30*time.Second, "the neighbor entry of the VIP at the router", func() bool { return w.neighbour(vip) == own && ready() })

	resume := a.stop()
	stopped := time.Now()
	w.replaceVIP()
	w.hasElsewhere(vip)
	w.hasElsewhere(otherVIP)
	// Other nodes answer four seconds after the last beat.
	w.Await(20*time.Second, "ten seconds", func() bool { return time.Since(stopped) > 10*time.Second })
	resume()
	resumed, told := time.Now(), time.Duration(0)
	for time.Since(resumed) < 15*time.Second {
		if at := w.neighbour(vip); at != elsewhereMAC {
			t.Fatalf("%s after it was resumed, the node announced a removed VIP with MAC %s", time.Since(resumed), at)
		}
		if told == 0 && w.neighbour(otherVIP) == own {
			told = time.Since(resumed)
		}
	}
	if told == 0 {
		t.Error("the router was not notified of the new VIP")
	}
	t.Logf("the router was notified of the new VIP after %s", told.Round(time.Millisecond))
}

// hasElsewhere sets the router's neighbour entry of a VIP to elsewhereMAC; only an announcement changes it.
func (w *world) hasElsewhere(address string) {
	w.t.Helper()
	run(w.t, "ip -n "+routerSpace+" neigh replace "+address+" dev eth0 lladdr "+elsewhereMAC+" nud stale")
}

func (w *world) neighbour(address string) string {
	w.t.Helper()
	out, err := exec.Command("ip", "-n", routerSpace, "neigh", "show", address, "dev", "eth0").CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	words := strings.Fields(string(out))
	for i, word := range words {
		if word == "lladdr" && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
