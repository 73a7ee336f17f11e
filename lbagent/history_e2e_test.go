// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

func (w *world) historyOf(service string) []consoleapi.HistoryEntry {
	w.t.Helper()
	var out bytes.Buffer
	request := Request{Command: "history", History: &consoleapi.HistoryQuery{Service: service}}
	if err := Query(w.t.Context(), consoleapi.Socket, request, &out); err != nil {
		w.t.Fatal(err)
	}
	var line consoleapi.Line
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.History == nil || line.History.Node != thisNode {
		w.t.Fatalf("%s, error %v; want a history of %s", out.Bytes(), err, thisNode)
	}
	return line.History.Entries
}

// awaitRecordedSessions waits until the history has a number of established sessions. A killed agent loses the
// entries of its last 100 ms.
func (w *world) awaitRecordedSessions(want int) {
	w.t.Helper()
	w.Await(10*time.Second, fmt.Sprintf("%d established sessions in the history", want), func() bool {
		got := 0
		for _, entry := range w.historyOf("") {
			if entry.Kind == consoleapi.HistorySession && entry.What == "Established" {
				got++
			}
		}
		return got == want
	})
}

// checkHistory checks the history of TestAgent, with four agents.
func (w *world) checkHistory() {
	w.t.Helper()
	want := map[string]int{
		"Agent Started": 4, "Agent Ended": 2, "Session Established: router": 4, "Route Announced: " + vip: 4,
		"Endpoints Gone": 1, "Route NotAnnounced: NoLocalEndpoint": 1, "Route NotAnnounced: no longer a VIP": 1,
	}
	got := map[string]int{}
	var all []string
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("recorded events %v in\n%s", got, strings.Join(all, ""))
		}
	})
	// Recording is asynchronous.
	w.Await(10*time.Second, "the history of four agents", func() bool {
		clear(got)
		all = nil
		for _, entry := range w.historyOf(served.String()) {
			all = append(all, fmt.Sprintln(entry.Kind, entry.What, entry.Names, entry.VIPs, entry.Message))
			for words := range want {
				kind, about, _ := strings.Cut(words, ": ")
				if kind == fmt.Sprint(entry.Kind, " ", entry.What) && strings.Contains(all[len(all)-1], about) {
					got[words]++
				}
			}
		}
		return maps.Equal(got, want)
	})
	err := filepath.WalkDir(filepath.Join(w.stateDir, "history"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			w.t.Errorf("%s has mode %s, want no access for group and others", path, info.Mode())
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}
