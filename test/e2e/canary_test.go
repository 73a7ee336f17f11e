// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// routerCanary is a canary of an LBPeer over the session of its own family.
type routerCanary struct{ peer, address, family, prefixes string }

// canaries are in no pool.
var canaries = []routerCanary{
	{"router1", "203.0.113.250", "ipv4", "ip"},
	{"router1-v6", "2001:db8:cafe:1::250", "ipv6", "ipv6"},
}

// The condition of LBPeers reports whether the router reaches all nodes and names the node whose route the
// router filters, and its repair.
func TestCanaryReportsFilteredRoute(t *testing.T) {
	for _, c := range canaries {
		cleanup(t, "patch", "lbpeer", c.peer, "--type=merge", "--patch", `{"spec":{"canaries":null}}`)
	}
	t.Cleanup(func() { logCanaries(t) })
	for _, c := range canaries {
		kubectl(t, "patch", "lbpeer", c.peer, "--type=merge", "--patch", `{"spec":{"canaries":["`+c.address+`"]}}`)
	}
	reachedThroughRouter(t, time.Minute, metav1.ConditionTrue, millracev1beta1.ReasonPathsVerified, "")
	allVerified(t)

	t.Cleanup(func() { filterThird(t, false) })
	filterThird(t, true)
	reachedThroughRouter(t, 20*time.Second, metav1.ConditionFalse, millracev1beta1.ReasonRouteMissing, "node3")
	if out, err := cluster.Millrace(t.Context(), "bgp", "verify"); err == nil || strings.Count(out, "node3  yes        0/2") != len(canaries) {
		t.Errorf("millrace bgp verify: %v\n%s", err, out)
	}

	filterThird(t, false)
	reachedThroughRouter(t, 30*time.Second, metav1.ConditionTrue, millracev1beta1.ReasonPathsVerified, "")
	for _, c := range canaries {
		kubectl(t, "patch", "lbpeer", c.peer, "--type=merge", "--patch", `{"spec":{"canaries":null}}`)
		eventually(t, 20*time.Second, func(ctx context.Context) error {
			condition, err := c.condition(ctx)
			if err == nil && condition != nil {
				err = fmt.Errorf("condition of LBPeer %s without canaries = %+v", c.peer, condition)
			}
			return err
		})
	}
}

// allVerified waits until each node is reached from both others.
func allVerified(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, func(ctx context.Context) error {
		if out, err := cluster.Millrace(ctx, "bgp", "verify"); err != nil || strings.Count(out, "2/2") != 3*len(canaries) {
			return fmt.Errorf("millrace bgp verify: %w\n%s", err, out)
		}
		return nil
	})
}

// filterThird adds or removes router1's filter of the third node's canary routes.
func filterThird(t *testing.T, on bool) {
	t.Helper()
	args := []string{"vtysh", "router1", "--", "-c", "configure terminal"}
	for _, c := range canaries {
		address := netip.MustParseAddr(c.address)
		session := []string{"router bgp 64512", "address-family " + c.family + " unicast"}
		neighbor := fmt.Sprintf("neighbor %s route-map CANARY-%s in", harness.NodeAddress(3, address), c.family)
		list := fmt.Sprintf("%s prefix-list CANARY-%s", c.prefixes, c.family)
		lines := slices.Concat(session, []string{"no " + neighbor, "exit", "exit", "no route-map CANARY-" + c.family, "no " + list})
		if on {
			lines = slices.Concat([]string{
				fmt.Sprintf("%s seq 5 permit %s/%d", list, address, address.BitLen()),
				"route-map CANARY-" + c.family + " deny 10",
				fmt.Sprintf("match %s address prefix-list CANARY-%s", c.prefixes, c.family), "exit",
				"route-map CANARY-" + c.family + " permit 20", "exit",
			}, session, []string{neighbor, "exit", "exit"})
		}
		for _, line := range lines {
			args = append(args, "-c", line)
		}
	}
	_, err := cluster.Run(context.WithoutCancel(t.Context()), args...)
	must(t, err)
}

func (c *routerCanary) condition(ctx context.Context) (*metav1.Condition, error) {
	peer := &millracev1beta1.LBPeer{}
	if err := cluster.Get(ctx, peer, "lbpeer", c.peer); err != nil {
		return nil, err
	}
	return meta.FindStatusCondition(peer.Status.Conditions, millracev1beta1.ConditionPathsVerified), nil
}

func reachedThroughRouter(t *testing.T, limit time.Duration, want metav1.ConditionStatus, reason, node string) {
	t.Helper()
	begun := time.Now()
	for _, c := range canaries {
		eventually(t, limit, func(ctx context.Context) error {
			condition, err := c.condition(ctx)
			if err != nil {
				return err
			}
			if condition == nil || condition.Status != want || condition.Reason != reason || !strings.Contains(condition.Message, node) {
				return fmt.Errorf("condition of LBPeer %s = %+v, want %s with reason %s and %q", c.peer, condition, want, reason, node)
			}
			return nil
		})
		t.Logf("%s: %s after %s", c.peer, reason, time.Since(begun).Round(time.Millisecond))
	}
}

func logCanaries(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	for _, command := range [][]string{{"bgp", "verify"}, {"bgp", "routes"}} {
		out, err := cluster.Millrace(ctx, command...)
		t.Logf("millrace %s: %v\n%s", strings.Join(command, " "), err, out)
	}
	out, err := cluster.Kubectl(ctx, "get", "lbnodereports", "-o", "jsonpath={.items[*].status.sessions}")
	t.Logf("sessions: %v\n%s", err, out)
}
