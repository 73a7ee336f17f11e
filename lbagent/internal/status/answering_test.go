// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestL2VIPs(t *testing.T) {
	var o Observation
	for vip := netip.MustParseAddr("192.0.2.0"); len(o.Answering) <= maxAnswering; vip = vip.Next() {
		o.Answering = append(o.Answering, vip)
	}
	told := Build(o, &millracev1beta1.LBNodeReport{}, metav1.Now()).L2VIPs
	if len(told) != maxAnswering || told[0] != "192.0.2.0" || told[maxAnswering-1] != "192.0.2.255" {
		t.Errorf("%d VIPs = %q", len(told), told)
	}
	if told := Build(Observation{}, &millracev1beta1.LBNodeReport{}, metav1.Now()).L2VIPs; told != nil {
		t.Errorf("got %q", told)
	}
}
