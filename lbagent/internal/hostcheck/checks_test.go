// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestDevices(t *testing.T) {
	loopback := 1
	got := devices([]dataplane.Attachment{
		{Interface: "eth0.5", DeviceName: "eth0"}, {Interface: "eth0", DeviceName: "eth0"},
		{Interface: "bond0", DeviceName: "bond0", Members: []int{loopback}},
	})
	if want := []string{"eth0", "lo"}; !slices.Equal(got, want) {
		t.Errorf("network interfaces = %v, want %v", got, want)
	}
}

type host struct{}

func (host) Attachments() []dataplane.Attachment {
	return []dataplane.Attachment{{Interface: "eth0.5", DeviceName: "eth0", TagsBeside: errors.New("no feature")}}
}
func (host) ProgramsBefore() (map[string][]string, error)            { return nil, nil }
func (host) TransmitDrops() ([]dataplane.UplinkTransmitDrops, error) { return nil, nil }
func (host) TransmitDropsErr() error                                 { return errors.New("no tracepoints") }
func (host) WrongUplinks() (uint64, error)                           { return 0, nil }

func TestProblems(t *testing.T) {
	checks := New(host{}, func() error { return errors.New("no xt_bpf") }, false, logr.Discard())
	checks.order.set("eth0: program 12")
	checks.conntrack.observe(262143, 262144)
	checks.firewall.set("ip filter FORWARD")
	got := strings.Join(checks.Problems(&model.Model{}, []string{"eth0.5"}), "\n")
	for _, want := range []string{"no feature", "no tracepoints", "no xt_bpf", "program 12", "262144", "ip filter FORWARD"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is reported %d times in %q, want once", want, strings.Count(got, want), got)
		}
	}
}
