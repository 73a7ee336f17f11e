// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
)

// TestTransmitDrops checks that the report names uplinks and reasons, and changes only with them.
func TestTransmitDrops(t *testing.T) {
	start := time.Unix(0, 0)
	var u transmitDrops
	eth0 := func(transmit, redirect uint64) dataplane.UplinkTransmitDrops {
		return dataplane.UplinkTransmitDrops{Interface: "eth0", Transmit: transmit, Redirect: redirect}
	}
	eth1 := dataplane.UplinkTransmitDrops{Interface: "eth1"}
	for _, step := range []struct {
		name    string
		after   time.Duration
		drops   []dataplane.UplinkTransmitDrops
		changed bool
		told    string
	}{
		{"previous drops", 0, []dataplane.UplinkTransmitDrops{eth0(5, 6), eth1}, false, ""},
		{"nothing new", time.Minute, []dataplane.UplinkTransmitDrops{eth0(5, 6), eth1}, false, ""},
		{"one reason", 2 * time.Minute, []dataplane.UplinkTransmitDrops{eth0(5, 7), eth1}, true, "eth0 (redirect)"},
		{"additional drops", 3 * time.Minute, []dataplane.UplinkTransmitDrops{eth0(5, 9), eth1}, false, "eth0 (redirect)"},
		{"another", 4 * time.Minute, []dataplane.UplinkTransmitDrops{eth0(6, 9), eth1}, true, "eth0 (redirect), eth0 (transmit)"},
		{"long after the first drop", 3*time.Minute + recentWindow, []dataplane.UplinkTransmitDrops{eth0(6, 9), eth1}, true, "eth0 (transmit)"},
		{"no uplink left", 3*time.Minute + recentWindow, []dataplane.UplinkTransmitDrops{eth1}, true, ""},
	} {
		if changed := u.observe(step.drops, start.Add(step.after)); changed != step.changed || u.text() != step.told {
			t.Errorf("%s: changed %t, text %q, want %t, %q", step.name, changed, u.text(), step.changed, step.told)
		}
	}
}

func TestTransmitDropsProblems(t *testing.T) {
	var u transmitDrops
	if got := u.problems(nil); got != nil {
		t.Errorf("without drops: %q", got)
	}
	text := "eth0 (transmit)"
	u.current.Store(&text)
	got := u.problems(errors.New("no tracepoints"))
	if len(got) != 2 || !strings.Contains(got[0], text) || !strings.Contains(got[1], "no tracepoints") {
		t.Errorf("problems = %q", got)
	}
	const flag = "--veth-transmit"
	if strings.Contains(got[0], flag) {
		t.Errorf("without the flag: %q", got[0])
	}
	u.vethTransmit = true
	if got := u.problems(nil); len(got) != 1 || !strings.Contains(got[0], flag) {
		t.Errorf("problems = %q, want one that contains %s", got, flag)
	}
}
