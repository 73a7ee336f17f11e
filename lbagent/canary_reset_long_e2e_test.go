// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// resetsFor is the duration of the test, as in MILLRACE_CANARY=60m.
func resetsFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("MILLRACE_CANARY")
	if text == "" {
		return 3 * time.Minute
	}
	limit, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("read MILLRACE_CANARY: %v", err)
	}
	return limit
}

func (w *world) described() string {
	reports := &millracev1beta1.LBNodeReportList{}
	if err := w.client.List(w.t.Context(), reports); err != nil {
		w.t.Fatal(err)
	}
	var lines []string
	for i := range reports.Items {
		for _, session := range reports.Items[i].Status.Sessions {
			line := fmt.Sprintf("%s %s", reports.Items[i].Name, session.State)
			for _, canary := range session.Canaries {
				line += fmt.Sprintf(" announced %t reached %q known %t", canary.Announced, canary.Reached, canary.Unanswered != nil)
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Repeated resets of one or all sessions are reported as no fault, though reports are at their rate limit and
// describe different moments.
func TestSessionResetsAreNoFault(t *testing.T) {
	w, _ := proving(t)
	limit, begun, random := resetsFor(t), time.Now(), rand.New(rand.NewPCG(1, 2))
	alarms, resets := 0, 0
	last := ""
	for time.Since(begun) < limit {
		neighbor := []string{"*", "198.51.100.4", "198.51.100.2"}[random.IntN(3)]
		w.Clear(neighbor)
		resets++
		at := time.Now()
		// Random, so that some resets hit a path that was just restored.
		for end := at.Add(time.Duration(3+random.IntN(20)) * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			verdict := w.verdict()
			if is := verdict.Reason; is != last {
				last = is
				if !verdict.OK() && is != "" && verdict.Known() {
					alarms++
					t.Errorf("%s after %d resets, %s after the reset of %s: %s %s; reports: %s", time.Since(begun).Round(time.Second),
						resets, time.Since(at).Round(time.Millisecond), neighbor, is, verdict.Message, w.described())
				}
			}
		}
	}
	t.Logf("%d alarms, %d resets in %s", alarms, resets, limit)
	w.awaitReached()
	w.Configure("ip prefix-list NOCANARY seq 5 deny "+canaryAddress+"/32", "ip prefix-list NOCANARY seq 10 permit any",
		"router bgp 64500", "address-family ipv4 unicast", "neighbor 198.51.100.4 prefix-list NOCANARY in")
	w.awaitVerdict(millracev1beta1.ReasonRouteMissing, thirdNode)
}
