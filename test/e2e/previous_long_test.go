// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// formerAgent is a commit whose maps have the layout of two versions before (dataplane/layouts). It
// knows small tables: agents from before them do not start on these maps.
const previousAgent = "5417776c94aa60532a4282ce3f64042e41798c22"

// TestFormerAgent upgrades from another version's maps and goes back, with connections whose nodes
// change in between: none breaks.
func TestPreviousAgent(t *testing.T) {
	commit := previousAgent
	if other := os.Getenv("MILLRACE_FORMER"); other != "" {
		commit = other
	}
	image, err := cluster.LoadPreviousAgent(t.Context(), commit)
	must(t, err)
	t.Cleanup(func() { setAgentImage(t, "millrace.test/lbagent:dev") })
	setAgentImage(t, image)
	s := holdService(t, 6)
	announceFromLabelled(t)
	s.routed(t, 30*time.Second, 1, 2, 3)
	h := hold(t, s)

	withdraw(t, "node1", s, 2, 3)
	h.survived(t, "announcement withdrawn under the former agents")

	setAgentImage(t, "millrace.test/lbagent:dev")
	h.survived(t, "agents upgraded")
	checkMapsOpened(t, "converted")
	announce(t, "node1", s, 1, 2, 3)
	h.survived(t, "announced again under the new agents")

	setAgentImage(t, image)
	h.survived(t, "agents of the former version again")
	checkMapsOpened(t, "converted")
	withdraw(t, "node2", s, 1, 3)
	h.survived(t, "announcement withdrawn under them")
}

// checkMapsOpened checks what the agents say of the pinned maps that they found.
func checkMapsOpened(t *testing.T, how string) {
	t.Helper()
	logs := kubectl(t, "-n", "millrace-system", "logs", "-l", "app.kubernetes.io/component=agent", "-c", "lbagent", "--tail=-1")
	opened := 0
	for line := range strings.SplitSeq(logs, "\n") {
		if strings.Contains(line, "Data plane open") {
			opened++
			if !strings.Contains(line, `"maps":"`+how+`"`) {
				t.Errorf("the agent says %s, want maps %s", line, how)
			}
		}
	}
	if opened < len(nodeNames) {
		t.Errorf("%d agents say how they opened the data plane, want %d", opened, len(nodeNames))
	}
}
