// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

func TestTableIsCutToWidth(t *testing.T) {
	wide := &table{
		columns: []column{{heading: "ADDRESS"}, {heading: "SERVICE", cut: true}, {heading: "POOL", cut: true}},
		rows:    [][]string{{"2001:db8:cafe::1", strings.Repeat("s", 60), strings.Repeat("p", 30)}, {"203.0.113.1", "a/b", "x"}},
	}
	for _, test := range []struct {
		width, want int
	}{
		{0, 16 + 2 + 60 + 2 + 30},
		{120, 16 + 2 + 60 + 2 + 30},
		{100, 100},
		{60, 60},
		{52, 16 + 2 + 16 + 2 + 16},
		// Names are cut below a dozen characters before an address is.
		{30, 16 + 2 + 5 + 2 + 5},
	} {
		lines := wide.lines(test.width)
		if have := len([]rune(lines[1])); have != test.want {
			t.Errorf("width %d: row of %d columns, want %d: %q", test.width, have, test.want, lines[1])
		}
		if !strings.HasPrefix(lines[1], "2001:db8:cafe::1  s") {
			t.Errorf("width %d: the address is not whole: %q", test.width, lines[1])
		}
		if column := strings.Index(lines[0], "  SE") + 2; strings.Index(lines[2], "a/b") != column {
			t.Errorf("width %d: column SERVICE is not straight:\n%s", test.width, strings.Join(lines, "\n"))
		}
	}
}

func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		want  []string
	}{
		{"", 10, []string{""}},
		{"one two three", 7, []string{"one two", "three"}},
		{"one two three", 0, []string{"one two three"}},
		{"a 2001:db8:cafe:1:2:3:4:5 b", 6, []string{"a", "2001:db8:cafe:1:2:3:4:5", "b"}},
		{"öö öö öö", 5, []string{"öö öö", "öö"}},
	} {
		if diff := cmp.Diff(test.want, wrap(test.text, test.width)); diff != "" {
			t.Errorf("wrap(%q, %d) (-want +have):\n%s", test.text, test.width, diff)
		}
	}
}

func TestAnnouncers(t *testing.T) {
	by := func(peers string, nodes ...int) report.Announcement {
		announcement := report.Announcement{Peers: strings.Split(peers, ",")}
		for _, node := range nodes {
			announcement.Nodes = append(announcement.Nodes, fmt.Sprintf("node%d", node))
		}
		return announcement
	}
	many := func(list ...report.Announcement) []report.Announcement { return list }
	for _, test := range []struct {
		name  string
		list  []report.Announcement
		nodes int
		want  string
	}{
		{"nobody", nil, 3, "-"},
		{"all", many(by("r1", 1, 2, 3)), 3, "all 3 nodes to r1"},
		{"the only one", many(by("r1", 1)), 1, "node1 to r1"},
		{"few", many(by("r1,r2", 1, 3)), 4, "node1,node3 to r1,r2"},
		{"many", many(by("r1", 1, 2, 3, 4)), 9, "4 of 9 nodes to r1"},
		{"different peers", many(by("r1", 1), by("r2", 2)), 2, "node1 to r1; node2 to r2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if have := announcers(test.list, test.nodes, 3); have != test.want {
				t.Errorf("have %q, want %q", have, test.want)
			}
		})
	}
}

func TestStatusCutsLongNames(t *testing.T) {
	name := "node-" + strings.Repeat("x", 90) + "-17.example.com"
	view := &report.View{Problems: []report.Problem{{Kind: "LBNode", Name: name, Reason: "NotEstablished", Since: time.Unix(1700000000, 0), Message: "m"}}}
	var text bytes.Buffer
	if err := Status(&text, view, Options{Width: 80}); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, text.String(), 80)
	if want := "17.example.com  NotEstablished  since 2023-11-14T22:13:20Z\n"; !strings.Contains(text.String(), want) {
		t.Errorf("%q is not in:\n%s", want, text.String())
	}
}

func TestStatusIsOneScreen(t *testing.T) {
	view := &report.View{Answered: 200}
	for i := range 200 {
		view.VIPs = append(view.VIPs, report.VIP{Allocation: report.Allocation{Address: fmt.Sprintf("203.0.113.%d", i)}})
		view.Nodes = append(view.Nodes, report.Node{Name: fmt.Sprintf("node%d", i)})
		view.Problems = append(view.Problems, report.Problem{Kind: "LBNode", Name: fmt.Sprintf("node%d", i), Reason: fmt.Sprintf("R%d", i%100), Message: "m"})
	}
	var text bytes.Buffer
	if err := Status(&text, view, Options{Width: 80}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(text.String(), "\n"); lines > 100 {
		t.Errorf("%d lines", lines)
	}
	for _, want := range []string{"… and 185 more: millrace vips", "… and 185 more: millrace nodes", "LBNode/node0 and 1 more  R0", "… and 80 more: millrace status -o yaml"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in:\n%s", want, text.String())
		}
	}
	var raw bytes.Buffer
	if err := Status(&raw, view, Options{Format: JSON, Width: 80}); err != nil {
		t.Fatal(err)
	}
	var decoded report.View
	if err := json.Unmarshal(raw.Bytes(), &decoded); err != nil {
		t.Fatal(err)
	}
	if len(decoded.VIPs) != 200 || len(decoded.Nodes) != 200 || len(decoded.Problems) != 200 {
		t.Errorf("JSON has %d VIPs, %d nodes, %d problems", len(decoded.VIPs), len(decoded.Nodes), len(decoded.Problems))
	}
}

func TestColour(t *testing.T) {
	for _, test := range []struct {
		view *report.View
		on   bool
		want string
	}{
		{&report.View{}, true, "\x1b[32mNo problems.\x1b[0m"},
		{&report.View{Problems: []report.Problem{{Kind: "VIP", Name: "203.0.113.1"}}}, true, "\x1b[31mProblems\x1b[0m"},
		{&report.View{}, false, "\nNo problems."},
	} {
		var text bytes.Buffer
		if err := Status(&text, test.view, Options{Colour: test.on}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), test.want) {
			t.Errorf("%q is not in %q", test.want, text.String())
		}
		if !test.on && strings.Contains(text.String(), "\x1b") {
			t.Errorf("colour without a request: %q", text.String())
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken pipe")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteErrorsAreReturned(t *testing.T) {
	view := &report.View{}
	for _, format := range []Format{Text, Wide, JSON, YAML} {
		if err := Status(brokenWriter{}, view, Options{Format: format}); !errors.Is(err, errBroken) {
			t.Errorf("format %q: error %v, want %v", format, err, errBroken)
		}
	}
}
