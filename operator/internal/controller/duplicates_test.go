// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

func TestDuplicateTracker(t *testing.T) {
	web, dns := netip.MustParseAddr("203.0.113.80"), netip.MustParseAddr("203.0.113.53")
	var enqueued []netip.Addr
	c := newDuplicateTracker(func(_ queue, addresses []netip.Addr) { enqueued = addresses })
	found := func(address netip.Addr, mac string, withheld bool) millracev1beta1.DuplicateAddress {
		return millracev1beta1.DuplicateAddress{Address: address.String(), Interface: "eth0", HardwareAddress: mac, Withheld: withheld}
	}
	step := func(node string, hosts []millracev1beta1.DuplicateAddress, wantHost string, withheld bool, concerned ...netip.Addr) {
		t.Helper()
		c.update(nil, node, &millracev1beta1.LBNodeReport{Status: millracev1beta1.LBNodeReportStatus{Duplicates: hosts}})
		if !slices.Equal(enqueued, concerned) {
			t.Errorf("%s affects %v, want %v", node, enqueued, concerned)
		}
		got := c.of(web)
		if got.Withheld != withheld || (got.Host == "") != (wantHost == "") || !strings.Contains(got.Host+" at "+got.Network, wantHost) {
			t.Errorf("after %s: %+v, want %q, withheld %v", node, got, wantHost, withheld)
		}
	}
	const printer, phone = "02:00:00:00:00:09", "02:00:00:00:00:08"
	inUse := found(web, printer, false)
	step("b", []millracev1beta1.DuplicateAddress{inUse}, printer, false, web)
	step("b", []millracev1beta1.DuplicateAddress{inUse, found(dns, phone, false), {Address: "nonsense"}}, "eth0 of node b", false, dns)
	step("c", []millracev1beta1.DuplicateAddress{inUse}, "node b", false)
	step("a", []millracev1beta1.DuplicateAddress{inUse}, "node a", false, web)
	step("a", nil, "node b", false, web)
	step("d", []millracev1beta1.DuplicateAddress{inUse}, "node b", false)
	step("d", []millracev1beta1.DuplicateAddress{found(web, phone, true)}, "node d", true, web)
	step("d", nil, "node b", false, web)
	step("c", nil, "node b", false)
	step("b", nil, "", false, dns, web)
	if len(c.hosts)+len(c.byNode) > 0 {
		t.Errorf("remaining: %v and %v", c.hosts, c.byNode)
	}
}

func TestSetUnique(t *testing.T) {
	var conditions []metav1.Condition
	setUnique(&conditions, 3, validation.Duplicate{Host: "the host", Withheld: true})
	if len(conditions) != 1 || conditions[0].Type != millracev1beta1.ConditionUnique || conditions[0].Status != metav1.ConditionFalse ||
		conditions[0].Reason != millracev1beta1.ReasonDuplicateAddress {
		t.Errorf("conditions = %+v, want Unique False", conditions)
	}
	setUnique(&conditions, 3, validation.Duplicate{Host: "the host"})
	if len(conditions) != 1 || conditions[0].Reason != millracev1beta1.ReasonDuplicateInUse {
		t.Errorf("conditions = %+v, want the reason of a VIP in use", conditions)
	}
	if setUnique(&conditions, 3, validation.Duplicate{}); len(conditions) > 0 {
		t.Errorf("conditions = %+v for a VIP without a duplicate, want none", conditions)
	}
}
