// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"slices"
	"strings"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/test/echo/holdreport"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
)

func TestFits(t *testing.T) {
	all := slices.Concat([]string{"cp"}, nodes, routers)
	for _, test := range []struct {
		name  string
		hosts []string
		grace time.Duration
		want  string
	}{
		{"all within the limits", all, config.KubernetesTiming, ""},
		{"one router", all[:5], config.KubernetesTiming, "there is no router2"},
		{"two nodes", []string{"cp", "node1", "node2", "router1", "router2"}, config.KubernetesTiming, "there is no node3"},
		{"a longer grace period", all, 2 * time.Minute, "--node-grace 2m0s"},
		{"limit of the lab", all, 20 * time.Second, "--node-grace 20s"},
	} {
		err := Fits(test.hosts, test.grace)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestLimit(t *testing.T) {
	fine := result{requests: 2000}
	for _, test := range []struct {
		name  string
		limit limit
		got   result
		want  string
	}{
		{"no effect", noLoss, fine, ""},
		{"pods deleted with their connections", noLoss, result{requests: 2000, lost: 9}, ""},
		{"one request failed", noLoss, result{requests: 2000, failed: 1}, "1 failed"},
		{"one connection broke", noLoss, result{requests: 2000, broken: 1}, "1 broken"},
		{"no measurement", noLoss, result{}, "no request was made"},
		{"longest permitted gap", halfGap, result{requests: 2000, failed: 80, gap: 500 * time.Millisecond}, ""},
		{"longer gap", halfGap, result{requests: 2000, failed: 81, gap: 501 * time.Millisecond}, "a gap of 501 ms"},
		{"gap and broken connections", halfGap, result{requests: 2000, gap: time.Second, broken: 3}, "a gap of 1000 ms, 3 broken"},
		{"routes restored in time", limit{any: true, back: 5 * time.Second}, result{requests: 1, failed: 1, broken: 1, back: 5 * time.Second}, ""},
		{"routes late", limit{any: true, back: 5 * time.Second}, result{requests: 1, back: 6 * time.Second}, "routes back after 6.0 s"},
		{"routes not measured", limit{any: true, back: 5 * time.Second}, fine, "routes back after no time"},
		{"false alarms", limit{any: true, isSilent: true}, result{requests: 1, alarms: 2}, "2 sessions lost"},
	} {
		if got := strings.Join(test.limit.missed(test.got), ", "); got != test.want {
			t.Errorf("%s: missed %q, want %q", test.name, got, test.want)
		}
	}
}

func TestRow(t *testing.T) {
	e := &event{title: "node killed hard", limit: halfGap}
	held := row(e, result{requests: 2200, failed: 39, gap: 350 * time.Millisecond, lost: 66})
	want := "node killed hard                            2200      39       350 ms       0         66  gap ≤ 500 ms, none broken: held"
	if held != want {
		t.Errorf("%q, want\n%q", held, want)
	}
	if missed := row(e, result{requests: 2200, gap: time.Second}); !strings.HasSuffix(missed, "MISSED (a gap of 1000 ms)") {
		t.Errorf("%q", missed)
	}
	e = &event{limit: limit{any: true, back: 5 * time.Second}}
	if late := row(e, result{requests: 1, back: 1300 * time.Millisecond}); !strings.HasSuffix(late, "held; routes back after 1.3 s") {
		t.Errorf("%q", late)
	}
}

func TestAttribute(t *testing.T) {
	flows := []holdreport.BrokenFlow{{Pod: "ended"}, {Pod: "on-the-node"}, {Pod: "elsewhere"}}
	live := map[string]string{"on-the-node": node, "elsewhere": "node1"}
	if broken, lost := attribute(flows, live, false); broken != 2 || lost != 1 {
		t.Errorf("running node: %d broken, %d lost", broken, lost)
	}
	if broken, lost := attribute(flows, live, true); broken != 1 || lost != 2 {
		t.Errorf("killed node: %d broken, %d lost", broken, lost)
	}
}

// TestEvents checks that names are unique and that each event has a limit.
func TestEvents(t *testing.T) {
	seen := map[string]bool{}
	for i := range events {
		e := &events[i]
		if seen[e.name] || e.title == "" || e.do == nil || e.lasts == 0 {
			t.Errorf("event %q is a duplicate or incomplete", e.name)
		}
		seen[e.name] = true
		if e.limit.any && e.limit.back == 0 && !e.limit.isSilent {
			t.Errorf("event %s has no limit", e.name)
		}
		if e.last && i != len(events)-1 {
			t.Errorf("event %s is destructive, but not the last one", e.name)
		}
		if len(e.title) > titleWidth {
			t.Errorf("title of event %s exceeds the width of the table", e.name)
		}
	}
	if err := Check([]string{"kill", "uninstall"}); err != nil {
		t.Error(err)
	}
	if err := Check([]string{"kill", "flood"}); err == nil || !strings.Contains(err.Error(), `"flood"`) {
		t.Errorf("unknown event: %v", err)
	}
	busy := &events[slices.Index(Names(), "busy")]
	if busy.selected(nil) || !busy.selected([]string{"kill", "busy"}) || !events[0].selected(nil) || events[1].selected([]string{"busy"}) {
		t.Error("wrong events are selected")
	}
}

func TestSessions(t *testing.T) {
	look := func(change func(*consoleapi.BGPPeer)) (found []consoleapi.BGP) {
		for _, node := range nodes {
			line := consoleapi.BGP{Node: node}
			for _, name := range peerNames() {
				line.Peers = append(line.Peers, consoleapi.BGPPeer{Peer: name, State: "Established", BFD: bfdUp, Flaps: 1})
			}
			found = append(found, line)
		}
		change(&found[1].Peers[2])
		return found
	}
	whole := look(func(*consoleapi.BGPPeer) {})
	if err := allUp(whole); err != nil {
		t.Error(err)
	}
	if lost := alarms(whole, whole); len(lost) > 0 {
		t.Errorf("alarms = %v, want none", lost)
	}
	for name, change := range map[string]func(*consoleapi.BGPPeer){
		"BGP":   func(p *consoleapi.BGPPeer) { p.State = "Active" },
		"BFD":   func(p *consoleapi.BGPPeer) { p.BFD = "Down" },
		"again": func(p *consoleapi.BGPPeer) { p.Due = time.Unix(1, 0) },
	} {
		if err := allUp(look(change)); err == nil || !strings.Contains(err.Error(), "node2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := allUp(whole[:2]); err == nil {
		t.Error("no error for the sessions of only two nodes")
	}
	flapped := look(func(p *consoleapi.BGPPeer) { p.Flaps, p.LastError = 2, "BFD session lost" })
	if lost := alarms(whole, flapped); !slices.Equal(lost, []string{"node2 lost router2: BFD session lost"}) {
		t.Errorf("alarms = %v", lost)
	}
	if err := established(whole, "router1"); err != nil {
		t.Error(err)
	}
	if err := established(look(func(p *consoleapi.BGPPeer) { p.State = "Idle" }), "router2"); err == nil {
		t.Error("no error for an idle session")
	}
}

func TestRunning(t *testing.T) {
	const ps = `
   20 /usr/lib/frr/bgpd -A 127.0.0.1 --log stdout
   21 vi bgpd.conf
   22 sh -c true /usr/lib/frr/bgpd
   31 /kubernetes kube-apiserver --v=2
`
	for program, want := range map[string][]string{"/bgpd": {"20"}, "kube-apiserver": {"31"}, "/bird": nil} {
		if got := running(ps, program); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", program, got, want)
		}
	}
}
