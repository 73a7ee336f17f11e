// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// A host that repeats its announcements is reported as a duplicate until it stops. A reply to a probe has
// precedence.
func TestClaims(t *testing.T) {
	var (
		start     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		probe     = Probe{Interface: "eth0", Address: netip.MustParseAddr("198.51.100.80")}
		host      = net.HardwareAddr{2, 0, 0, 0, 0, 9}
		other     = net.HardwareAddr{2, 0, 0, 0, 0, 8}
		c         = claims{}
		lastAdded time.Duration
	)
	for _, step := range []struct {
		at   time.Duration
		from net.HardwareAddr
		news bool
		// want is the duplicate after the step.
		want net.HardwareAddr
	}{
		{0, host, false, nil},
		{claimPeriod - 1, host, false, nil},
		{claimPeriod, host, true, host},
		{claimPeriod + time.Second, other, false, host},
		{claimPeriod + claimLifetime, nil, false, host},
		{claimPeriod + claimLifetime + time.Second, nil, false, nil},
		{2 * claimLifetime, other, false, nil},
		{2*claimLifetime + claimPeriod, other, true, other},
	} {
		now := start.Add(step.at)
		if step.from != nil {
			lastAdded = step.at
			if news := c.add(probe, step.from, now); news != step.news {
				t.Errorf("after %s: add returned %t, want %t", step.at, news, step.news)
			}
		}
		answers, again := c.addTo(nil, now)
		if got := answers[probe].HardwareAddr; got.String() != step.want.String() {
			t.Errorf("%s later: duplicate %q, want %q", step.at, got, step.want)
		}
		wait := time.Duration(0)
		if step.want != nil {
			wait = lastAdded + claimLifetime - step.at
		}
		if again != wait {
			t.Errorf("%s later: next change in %s, want %s", step.at, again, wait)
		}
	}
	answered := map[Probe]Answer{probe: {HardwareAddr: host}}
	if answers, _ := c.addTo(answered, start.Add(2*claimLifetime+claimPeriod)); answers[probe].HardwareAddr.String() != host.String() {
		t.Errorf("the reply of a host was replaced: %+v", answers)
	}
	for i := range 2 * maxClaims {
		c.add(Probe{Interface: "eth0", Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}, host, start)
	}
	if len(c) > maxClaims {
		t.Errorf("%d hosts are recorded, want at most %d", len(c), maxClaims)
	}
}
