// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

var address = netip.MustParseAddr("203.0.113.9")

func vipAt(version string, uid types.UID, owner string) *millracev1beta1.VIP {
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.9", UID: uid, ResourceVersion: version},
		Spec:       millracev1beta1.VIPSpec{Address: "203.0.113.9"},
	}
	if owner != "" {
		vip.Spec.Claims = []millracev1beta1.VIPClaim{{Namespace: "shop", Name: owner, UID: owner}}
	}
	return vip
}

func TestLedger(t *testing.T) {
	type step struct {
		put, remove *millracev1beta1.VIP
		news        bool
	}
	tests := []struct {
		name  string
		steps []step
		want  string
	}{
		{"event after our own write is ignored", []step{
			{put: vipAt("7", "a", "web"), news: true},
			{put: vipAt("7", "a", "web")},
		}, "7"},
		{"late event does not revert our own write", []step{
			{put: vipAt("9", "a", "web"), news: true},
			{put: vipAt("7", "a", "")},
		}, "9"},
		{"versions are compared as numbers", []step{
			{put: vipAt("9", "a", ""), news: true},
			{put: vipAt("10", "a", "web"), news: true},
			{put: vipAt("9", "a", "")},
		}, "10"},
		{"gone", []step{
			{put: vipAt("7", "a", "web"), news: true},
			{remove: vipAt("8", "a", "web")},
		}, ""},
		{"deletion of a previous object does not affect the current one", []step{
			{put: vipAt("7", "a", "web"), news: true},
			{put: vipAt("12", "b", "other"), news: true},
			{remove: vipAt("8", "a", "web")},
		}, "12"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newVIPCache()
			for i, step := range test.steps {
				if step.remove != nil {
					l.remove(step.remove)
				} else if news := l.put(step.put); news != step.news {
					t.Errorf("step %d: put = %v", i, news)
				}
			}
			checkLedger(t, l, test.want)
		})
	}
}

func checkLedger(t *testing.T, l *vipCache, want string) {
	t.Helper()
	known := l.object(address)
	_, inTable := l.table.Get(address)
	if want == "" {
		if known != nil || inTable {
			t.Errorf("cached: %+v, in the table: %v", known, inTable)
		}
		return
	}
	if known == nil || known.ResourceVersion != want || !inTable {
		t.Fatalf("cached: %+v, in the table: %v, want version %s", known, inTable, want)
	}
	for _, claim := range known.Spec.Claims {
		if got := l.claimed(claim.Namespace, claim.Name); len(got) != 1 || got[0] != known {
			t.Errorf("claimed(%s) = %v", claim.Name, got)
		}
	}
}

func TestLedgerIgnoresMisnamedObjects(t *testing.T) {
	for _, change := range []func(*millracev1beta1.VIP){
		func(vip *millracev1beta1.VIP) { vip.Name = "mine" },
		func(vip *millracev1beta1.VIP) { vip.Spec.Address = "mine" },
	} {
		l, vip := newVIPCache(), vipAt("7", "a", "web")
		change(vip)
		if l.put(vip) || len(l.claimed("shop", "web")) > 0 {
			t.Errorf("VIP %s with address %q is in the cache", vip.Name, vip.Spec.Address)
		}
	}
}
