// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/hack/catalogue"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

type silent struct{}

func (silent) Verdict() membership.Verdict { return membership.Verdict{} }
func (silent) Counters() probe.Counters    { return probe.Counters{} }

func TestCatalogue(t *testing.T) {
	sessions := func() []bgp.Session {
		return []bgp.Session{{Peer: "tor1", State: millracev1beta1.SessionActive, Since: time.Unix(1, 0), LastErrorTime: time.Unix(2, 0)}}
	}
	report := func() (control.Report, error) {
		return control.Report{
			Sessions: []control.Session{{Peer: "tor1", State: bfd.Up}}, Discarded: map[string]uint64{"malformed": 1},
		}, nil
	}
	catalogue.Own(t, "agent", NewCollector("v1", EachFrontend, counting{}, sessions, services), passes(), NewBFD(report), NewWatch(silent{}),
		NewRelay(func() bool { return true }),
		NewRefused(func() bgp.Refused { return bgp.Refused{UnknownSources: 1, Unopened: 2, Surplus: 3} }),
		NewLayer2(func() map[string]l2.Counts { return map[string]l2.Counts{"eth0": {Answered: 1, VIPs: 2}} }),
		NewHistory(func() History { return History{Dropped: map[string]uint64{"Endpoints": 1}} }))
}

// TestSeries checks the documented number of series in a cluster with many Services.
func TestSeries(t *testing.T) {
	const services = 10_000
	var rows []string
	for _, frontends := range []Frontends{EachFrontend, EachService, NoFrontends} {
		row := fmt.Sprintf("| `%s` |", frontends)
		for _, every := range []int{64, 1} {
			series := 0
			for line := range strings.Lines(string(servedOf(t, frontends, services, 1, every)())) {
				if strings.HasPrefix(line, catalogue.Prefix) {
					series++
				}
			}
			row += fmt.Sprintf(" %d |", series)
		}
		rows = append(rows, row)
	}
	catalogue.Hold(t, "series", "| `--frontend-metrics` | one of 64 used | each one used |\n|---|---|---|\n"+strings.Join(rows, "\n"))
}
