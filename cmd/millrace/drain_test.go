// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

func TestDraining(t *testing.T) {
	start := time.Unix(0, 0)
	vip := netip.MustParseAddr("203.0.113.1")
	for name, test := range map[string]struct {
		d    drainProgress
		at   time.Duration
		want string
	}{
		"not told":           {drainProgress{isCounted: true, since: start}, time.Hour, "operator"},
		"announced":          {drainProgress{isDraining: true, announced: []netip.Addr{vip}, isCounted: true, since: start}, time.Hour, "still announced: 203.0.113.1"},
		"many are announced": {drainProgress{isDraining: true, announced: []netip.Addr{vip, vip, vip, vip, vip, vip, vip}}, time.Hour, "and 2 more"},
		"not counted":        {drainProgress{isDraining: true}, time.Hour, "packets"},
		"packets":            {drainProgress{isDraining: true, isCounted: true, since: start}, idleTime - 1, "packets"},
		"quiet":              {drainProgress{isDraining: true, isCounted: true, since: start}, idleTime, ""},
	} {
		done, waiting := test.d.done(start.Add(test.at))
		if done != (test.want == "") || !strings.Contains(waiting, test.want) {
			t.Errorf("%s: done is %t, waits for %q; want %q", name, done, waiting, test.want)
		}
	}
	d := drainProgress{isDraining: true}
	for i, step := range []struct {
		packets uint64
		at      time.Duration
		done    bool
	}{{7, 0, false}, {7, time.Second, false}, {8, 2 * time.Second, false}, {8, 4 * time.Second, false}, {8, 5 * time.Second, true}} {
		d.count(step.packets, start.Add(step.at))
		if done, _ := d.done(start.Add(step.at)); done != step.done {
			t.Errorf("step %d: done is %t", i, done)
		}
	}
}

func TestRemainingRoutes(t *testing.T) {
	vips := []consoleapi.VIPGroup{
		{Peers: []string{"r"}, Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}},
		{Reason: "NodeDraining", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.2")}},
	}
	runner := fleet{trace: func(node string, args []string) (consoleapi.Line, error) {
		if node != "node1" {
			return consoleapi.Line{}, errors.New("another node is queried")
		}
		if args[0] == "vips" {
			return consoleapi.Line{VIPs: &consoleapi.VIPs{Groups: vips}}, nil
		}
		return countersLine(10, 41), nil
	}}
	var d drainProgress
	if err := d.update(t.Context(), runner, "node1", time.Unix(5, 0)); err != nil {
		t.Fatal(err)
	}
	if len(d.announced) != 1 || d.announced[0] != vips[0].Addresses[0] || d.packets != 41 {
		t.Errorf("seen %+v", d)
	}
	older := fleet{trace: func(string, []string) (consoleapi.Line, error) {
		return consoleapi.Line{Drops: &consoleapi.Drops{}}, nil
	}}
	if err := d.update(t.Context(), older, "node1", time.Unix(5, 0)); err == nil {
		t.Error("an older agent is understood")
	}
}

func TestDrainTimesOut(t *testing.T) {
	runner := fleet{trace: func(_ string, args []string) (consoleapi.Line, error) {
		if args[0] == "vips" {
			return consoleapi.Line{VIPs: &consoleapi.VIPs{Groups: []consoleapi.VIPGroup{
				{Peers: []string{"r"}, Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}},
			}}}, nil
		}
		return countersLine(10, 41), nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	departs := func(context.Context) (bool, error) { return true, nil }
	var out bytes.Buffer
	ended := make(chan error)
	writer := writerFunc(func(text []byte) (int, error) {
		defer cancel()
		return out.Write(text)
	})
	go func() { ended <- waitDrained(ctx, environment{stdout: writer}, runner, "node1", departs) }()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "still announced: 203.0.113.1") {
		t.Errorf("ended with %v", err)
	}
	if out.String() != "still announced: 203.0.113.1\n" {
		t.Errorf("printed %q", out.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }
