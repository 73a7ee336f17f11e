// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
)

// fakeHistory are agents that recorded the loss of an endpoint. node3 does not answer.
type fakeHistory struct {
	at      time.Time
	queried *[]string
}

func (fakeHistory) Nodes() []string { return []string{"node1", "node2", "node3"} }

func (w fakeHistory) Run(_ context.Context, node string, args []string, out io.Writer) error {
	*w.queried = args
	history := consoleapi.History{Node: node, Since: w.at.Add(-time.Hour)}
	switch node {
	case "node1":
		history.Entries = []consoleapi.HistoryEntry{{
			Time: w.at, Kind: consoleapi.HistoryEndpoints, What: "Gone", Services: []string{"default/web"},
			Endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:8080")},
		}}
	case "node2":
		history.Since, history.Damaged = w.at, 1
		history.Entries = []consoleapi.HistoryEntry{{
			Time: w.at.Add(time.Minute), Kind: consoleapi.HistoryDrops, Drops: []consoleapi.HistoryDrop{{Reason: "no_endpoint", Service: "default/web", Count: 7}},
		}}
	default:
		return errors.New("connection refused")
	}
	return json.NewEncoder(out).Encode(consoleapi.Line{History: &history})
}

func TestWhy(t *testing.T) {
	at := time.Date(2026, 11, 26, 3, 12, 30, 0, time.UTC)
	event := timeline.Event{Time: at.Add(-time.Second), About: "Pod default/web-0", Type: "Normal", Reason: "Killing", Message: "Stopping container"}
	for _, test := range []struct {
		line      string
		eventsErr error
		code      int
		queried   string
		stdout    []string
		stderr    string
	}{
		{
			line:    "why web -n default --at 2026-11-26T03:12:30Z",
			queried: "history --service=default/web --from=2026-11-26T03:07:30Z --to=2026-11-26T03:17:30Z",
			stderr:  "millrace: node3: connection refused\nmillrace: node2: 1 lines of the history are damaged\n",
			stdout: []string{
				"default/web: 7 packets were dropped until 03:13:30: no_endpoint", "",
				"From 26 Nov 2026 03:07:30 to 26 Nov 03:17:30 UTC", "node2 recorded only since 26 Nov 03:12:30.", "",
				"TIME          NODE   WHAT",
				"03:12:29.000  event  Pod default/web-0: Killing: Stopping container",
				"03:12:30.000  node1  default/web: endpoint 192.0.2.1:8080 was removed (0 left here)",
				"03:13:30.000  node2  7 packets dropped: no_endpoint, default/web", "",
			},
		},
		{
			line:      "why default/web --node node1 --at 2026-11-26T03:12:30Z --around 1s -o json",
			eventsErr: errors.New("not allowed"),
			queried:   "history --service=default/web --from=2026-11-26T03:12:29Z --to=2026-11-26T03:12:31Z",
			stderr:    "millrace: the Events of the API server are missing: not allowed\n",
			stdout: []string{
				"{", `  "service": "default/web",`, `  "at": "2026-11-26T03:12:30Z",`, `  "from": "2026-11-26T03:12:29Z",`, `  "to": "2026-11-26T03:12:31Z",`,
				`  "nodes": [`, `    "node1"`, "  ],", `  "verdict": {`,
				`    "text": "no failure is recorded: no packet of it was dropped, and its announcements did not change"`, "  },", `  "lines": [`, "    {", `      "time": "2026-11-26T03:12:30Z",`, `      "nodes": [`, `        "node1"`,
				"      ],", `      "kind": "Endpoints",`, `      "text": "default/web: endpoint 192.0.2.1:8080 was removed (0 left here)"`, "    }", "  ]", "}", "",
			},
		},
		{
			line: "why gone -n default --at 2026-11-26T03:12:30Z", eventsErr: &apierror.Missing{Kind: "Service", Name: "default/gone"},
			code: exitError, stdout: []string{""}, queried: "history --service=default/gone --from=2026-11-26T03:07:30Z --to=2026-11-26T03:17:30Z",
			stderr: "millrace: node3: connection refused\nmillrace: no Service default/gone\n",
		},
		{line: "why a/b/c", code: exitError, stdout: []string{""}, stderr: "millrace: \"a/b/c\" is not a Service: write NAME or NAMESPACE/NAME\n"},
		{line: "why a/b --at noon", code: exitError, stdout: []string{""}, stderr: "millrace: --at: \"noon\" is not a time: write 03:12, 03:12:30 or 2026-11-26T03:12:00Z\n"},
		{line: "why a/b --around 0s", code: exitError, stdout: []string{""}, stderr: "millrace: --around is 0s, must be more than 0\n"},
	} {
		t.Run(test.line, func(t *testing.T) {
			var queried []string
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), environment{
				args: append([]string{"millrace"}, strings.Fields(test.line)...), stdout: &stdout, stderr: &stderr,
				agents: func(cluster.Config, []corev1.Pod) (agents, error) { return fakeHistory{at, &queried}, nil },
				events: func(string, string) ([]timeline.Event, error) {
					if test.eventsErr != nil {
						return nil, test.eventsErr
					}
					return []timeline.Event{event}, nil
				},
			})
			if want := strings.Join(test.stdout, "\n"); code != test.code || stdout.String() != want || stderr.String() != test.stderr {
				t.Errorf("code %d, want %d\n%s\nwant\n%s\nstandard error %q, want %q", code, test.code, stdout.String(), want, stderr.String(), test.stderr)
			}
			if got := strings.Join(queried, " "); got != test.queried {
				t.Errorf("agents are queried with %q, want %q", got, test.queried)
			}
		})
	}
}
