// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// verified are nodes with two routers: one with a canary and a report per node, one that reaches all.
func verified(t *testing.T, reports ...string) string {
	t.Helper()
	items := map[string]string{}
	join := func(resource, item string) {
		if items[resource] != "" {
			item = "," + item
		}
		items[resource] += item
	}
	join("lbpeers", `{"metadata":{"name":"tor1"}},{"metadata":{"name":"tor2"}}`)
	for i, report := range reports {
		join("lbnodes", fmt.Sprintf(`{"metadata":{"name":"node%d"},"spec":{"id":%d}}`, i+1, i+1))
		session := `{"peer":%q,"address":"198.51.100.%d","state":"Established","canaries":[%s]}`
		reached := `{"address":"2001:db8:1::250","announced":true,"reached":"1-3","unanswered":0}`
		join("lbnodereports", fmt.Sprintf(`{"metadata":{"name":"node%d"},"status":{"sessions":[%s,%s]}}`, i+1,
			fmt.Sprintf(session, "tor1", 1, report), fmt.Sprintf(session, "tor2/a", 2, reached)))
	}
	return fakeCluster(t, items)
}

func canaryLine(announced bool, reached string, unanswered int) string {
	return fmt.Sprintf(`{"address":"203.0.113.250","announced":%t,"reached":%q,"unanswered":%d}`, announced, reached, unanswered)
}

func verify(t *testing.T, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, complaints bytes.Buffer
	code = run(t.Context(), environment{
		args: append([]string{"millrace", "bgp", "verify"}, arguments...), stdout: &out, stderr: &complaints, width: 120,
	})
	return out.String(), complaints.String(), code
}

func TestVerify(t *testing.T) {
	reached := verified(t, canaryLine(true, "1-3", 0), canaryLine(true, "1-3", 1), canaryLine(true, "1-3", 0))
	// The router has no route of the third node.
	filtered := verified(t, canaryLine(true, "1-2", 0), canaryLine(true, "1-2", 0), canaryLine(true, "1-2", 0))
	unknown := verified(t, `{"address":"203.0.113.250","announced":false}`)
	const (
		head   = "PEER  ROUTER        CANARY           NODE   ANNOUNCES  REACHED FROM  UNANSWERED  MTU  VERDICT\n"
		second = `tor2  198.51.100.2  2001:db8:1::250  node1  yes        2/2           0/64        ok   PathsVerified
tor2  198.51.100.2  2001:db8:1::250  node2  yes        2/2           0/64        ok   PathsVerified
tor2  198.51.100.2  2001:db8:1::250  node3  yes        2/2           0/64        ok   PathsVerified
`
		none = "millrace: verify routers: no node has an established session with an LBPeer that has spec.canaries"
	)
	for name, test := range map[string]struct {
		cluster, arguments, stdout, stderr string
		code                               int
	}{
		"all reached": {cluster: reached, code: exitOK, stdout: head + `tor1  198.51.100.1  203.0.113.250    node1  yes        2/2           0/64        ok   PathsVerified
tor1  198.51.100.1  203.0.113.250    node2  yes        2/2           1/64        ok   PathsVerified
tor1  198.51.100.1  203.0.113.250    node3  yes        2/2           0/64        ok   PathsVerified
` + second},
		"a filtered route": {cluster: filtered, code: exitProblems, stdout: head + `tor1  198.51.100.1  203.0.113.250    node1  yes        2/2           0/64        ok   RouteMissing
tor1  198.51.100.1  203.0.113.250    node2  yes        2/2           0/64        ok   RouteMissing
tor1  198.51.100.1  203.0.113.250    node3  yes        0/2           0/64        ok   RouteMissing
` + second + `Router 198.51.100.1, canary 203.0.113.250: the router uses the routes of 2 of 3 nodes: it filters the others, or has
fewer paths (maximum-paths); not reached: node3.
`},
		"the other peer alone": {cluster: filtered, arguments: "tor2", code: exitOK, stdout: head + second},
		"nothing known yet": {cluster: unknown, arguments: "tor1", code: exitProblems, stdout: `
PEER  ROUTER        CANARY         NODE   ANNOUNCES  REACHED FROM  UNANSWERED  MTU  VERDICT
tor1  198.51.100.1  203.0.113.250  node1  no         0/1           ?           ok   Pending
Router 198.51.100.1, canary 203.0.113.250: no node announces the canary and has probed for long enough.
`},
		"no canaries":         {cluster: emptyCluster(t), code: exitError, stderr: none + "\n"},
		"no such peer":        {cluster: reached, arguments: "tor3", code: exitError, stderr: "millrace: no LBPeer tor3; did you mean tor1?\n"},
		"a peer without":      {cluster: emptyCluster(t), arguments: "tor1", code: exitError, stderr: "millrace: no LBPeer tor1\n"},
		"no canaries as JSON": {cluster: emptyCluster(t), arguments: "-o json", code: exitProblems, stdout: "{\n  \"routers\": []\n}\n"},
		"no such format":      {cluster: reached, arguments: "-o xml", code: exitError, stderr: "millrace: --output=xml: must be json\n"},
		"too many peers":      {cluster: reached, arguments: "tor1 tor2", code: exitError, stderr: "millrace: unexpected argument \"tor2\"; write millrace bgp verify [PEER]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := verify(t, append(strings.Fields(test.arguments), "--kubeconfig", test.cluster)...)
			if want := strings.TrimPrefix(test.stdout, "\n"); stdout != want {
				t.Errorf("printed:\n%s\nwant:\n%s", stdout, want)
			}
			if stderr != test.stderr || code != test.code {
				t.Errorf("code %d, complaints %q; want %d, %q", code, stderr, test.code, test.stderr)
			}
		})
	}
	if stdout, stderr, code := verify(t, "--kubeconfig", "/nonexistent"); stdout != "" || code != exitError || !strings.Contains(stderr, "/nonexistent") {
		t.Errorf("without a cluster: code %d, %q, complaints %q", code, stdout, stderr)
	}
}

func TestVerifyJSON(t *testing.T) {
	filtered := verified(t, canaryLine(true, "1-2", 0), canaryLine(true, "1-2", 0), canaryLine(true, "1-2", 0))
	stdout, stderr, code := verify(t, "-o", "json", "--kubeconfig", filtered)
	if code != exitProblems || stderr != "" {
		t.Fatalf("code %d, complaints %q; want %d", code, stderr, exitProblems)
	}
	var read struct{ Routers []canary.Verdict }
	if err := json.Unmarshal([]byte(stdout), &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Routers) != 2 || read.Routers[1].Reason != millracev1beta1.ReasonPathsVerified {
		t.Fatalf("read %+v", read.Routers)
	}
	verdict := read.Routers[0]
	if verdict.Peer != "tor1" || verdict.Canary != "203.0.113.250" || verdict.Reason != millracev1beta1.ReasonRouteMissing ||
		!strings.Contains(verdict.Message, "node3") || len(verdict.Nodes) != 3 || verdict.Nodes[2].ReachedBy != 0 {
		t.Errorf("read %+v", verdict)
	}
}
