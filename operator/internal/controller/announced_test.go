// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

func verdictOf(address, reason, message string) validation.Announcement {
	return validation.Announcement{Address: netip.MustParseAddr(address), Problem: validation.Problem{Reason: reason, Message: message}}
}

func textOf(condition *metav1.Condition) string {
	if condition == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %s", condition.Status, condition.Reason, condition.Message)
}

func TestAnnouncedCondition(t *testing.T) {
	for _, test := range []struct {
		name     string
		verdicts []validation.Announcement
		want     string
	}{
		{"one family", []validation.Announcement{verdictOf("203.0.113.1", "", "")}, "True Announced announced: IPv4"},
		{"both families", []validation.Announcement{verdictOf("2001:db8::1", "", ""), verdictOf("203.0.113.1", "", "")}, "True Announced announced: IPv4, IPv6"},
		{"one of two", []validation.Announcement{verdictOf("203.0.113.1", "", ""), verdictOf("2001:db8::1", "NoLink", "no link")},
			"False NoLink announced: IPv4; IPv6: no link"},
		{"one of two addresses in a family", []validation.Announcement{verdictOf("203.0.113.1", "", ""), verdictOf("203.0.113.2", "Occupied", "occupied")},
			"False Occupied IPv4: occupied"},
		{"neither", []validation.Announcement{verdictOf("203.0.113.1", "NotSelected", "a"), verdictOf("2001:db8::1", "NotAnnounced", "b")},
			"False NotSelected IPv4: a; IPv6: b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			condition := announcedCondition(test.verdicts)
			if got := textOf(&condition); got != test.want {
				t.Errorf("condition = %q, want %q", got, test.want)
			}
		})
	}
}

func TestAnnouncedVIP(t *testing.T) {
	bound, reserved := claimedVIP("203.0.113.1", "", claimOf("a")), claimedVIP("203.0.113.1", "")
	before := metav1.Condition{Type: millracev1beta1.ConditionAnnounced, Status: metav1.ConditionFalse, Reason: "NotAnnounced"}
	for _, test := range []struct {
		name    string
		vip     *millracev1beta1.VIP
		verdict []validation.Announcement
		want    string
	}{
		{"no verdict yet", bound, nil, "False NotAnnounced "},
		{"announced", bound, []validation.Announcement{verdictOf("203.0.113.1", "", "")}, "True Announced "},
		{"not announced", bound, []validation.Announcement{verdictOf("203.0.113.1", "NotSelected", "no VIPAdvertisement")}, "False NotSelected no VIPAdvertisement"},
		{"no Service", reserved, []validation.Announcement{verdictOf("203.0.113.1", "", "")}, "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, vip := newAnnouncements(), test.vip.DeepCopy()
			vip.Status.Conditions = []metav1.Condition{before}
			a.put(test.verdict)
			a.setAnnounced(vip)
			if got := textOf(meta.FindStatusCondition(vip.Status.Conditions, millracev1beta1.ConditionAnnounced)); got != test.want {
				t.Errorf("condition = %q, want %q", got, test.want)
			}
		})
	}
}
