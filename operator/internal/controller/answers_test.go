// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// The last report of a ready node has precedence.
func TestAnswerTracker(t *testing.T) {
	var reported []netip.Addr
	c := newAnswerTracker(func(_ queue, addresses []netip.Addr) { reported = addresses })
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2")
	notReady := []metav1.Condition{{Type: millracev1beta1.ConditionNodeReady, Status: metav1.ConditionUnknown}}
	for _, step := range []struct {
		what       string
		node       string
		answering  []string
		conditions []metav1.Condition
		reported   []netip.Addr
		one, two   string
	}{
		{"a node answers", "node1", []string{"192.0.2.1", "2001:db8::2"}, nil, []netip.Addr{one, two}, "node1", "node1"},
		{"report repeated", "node1", []string{"192.0.2.1", "2001:db8::2"}, nil, nil, "node1", "node1"},
		{"another node answers for one address", "node2", []string{"2001:db8::2"}, nil, []netip.Addr{two}, "node1", "node2"},
		{"previous node has noticed", "node1", []string{"192.0.2.1"}, nil, nil, "node1", "node2"},
		{"a node dies", "node1", []string{"192.0.2.1"}, notReady, []netip.Addr{one}, "", "node2"},
		{"report of an unready node is ignored", "node1", []string{"192.0.2.1", "2001:db8::2"}, notReady, nil, "", "node2"},
		{"node ready again", "node1", []string{"192.0.2.1"}, nil, []netip.Addr{one}, "node1", "node2"},
		{"no node answers", "node2", nil, nil, []netip.Addr{two}, "node1", ""},
	} {
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: step.node}}
		report.Status.L2VIPs, report.Status.Conditions = step.answering, step.conditions
		stripped, err := TransformReport(report)
		if err != nil {
			t.Fatal(err)
		}
		c.update(nil, step.node, stripped.(*millracev1beta1.LBNodeReport))
		if !slices.Equal(reported, step.reported) || c.of(one) != step.one || c.of(two) != step.two {
			t.Errorf("%s: reported %v; answering nodes %q and %q; want %v, %q and %q", step.what, reported, c.of(one), c.of(two), step.reported, step.one, step.two)
		}
	}
}
