// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestKeyReplaced(t *testing.T) {
	keys := func(sending int64, required bool, accepted ...int64) millracev1beta1.LBNodeReport {
		var report millracev1beta1.LBNodeReport
		report.Status.TunnelKeys = &millracev1beta1.TunnelKeysStatus{Sending: sending, Required: required, Accepted: accepted}
		return report
	}
	done := keys(2, true, 2)
	for _, test := range []struct {
		name  string
		third millracev1beta1.LBNodeReport
		want  bool
	}{
		{"all nodes have the next key", done, true},
		{"one node still tags with the previous key", keys(1, true, 1, 2), false},
		{"one node still accepts the previous key", keys(2, true, 1, 2), false},
		{"one node requires no tag", keys(2, false, 2), false},
		{"one node reports no key", millracev1beta1.LBNodeReport{}, false},
	} {
		err := keyReplaced([]millracev1beta1.LBNodeReport{done, done, test.third}, 1)
		if (err == nil) != test.want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if keyReplaced([]millracev1beta1.LBNodeReport{done, done}, 1) == nil {
		t.Error("no error for a missing node")
	}
}
