// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"strings"
	"testing"
)

func TestTCXOrder(t *testing.T) {
	var f tcxOrder
	for _, step := range []struct {
		name     string
		programs map[string][]string
		changed  bool
		told     string
	}{
		{"none", map[string][]string{}, false, ""},
		{"one", map[string][]string{"eth0": {"program 12 (cil)"}}, true, "eth0: program 12 (cil)"},
		{"the same", map[string][]string{"eth0": {"program 12 (cil)"}}, false, "eth0: program 12 (cil)"},
		{
			"on two uplinks", map[string][]string{"eth1": {"program 7"}, "eth0": {"program 12 (cil)", "program 13"}},
			true, "eth0: program 12 (cil), program 13; eth1: program 7",
		},
		{"gone", nil, true, ""},
	} {
		if got := f.observe(step.programs); got != step.changed || f.text() != step.told {
			t.Errorf("%s: changed %t, text %q, want %t, %q", step.name, got, f.text(), step.changed, step.told)
		}
		if problems := strings.Join(f.problems(), ""); (problems != "") != (step.told != "") || !strings.Contains(problems, step.told) {
			t.Errorf("%s: problems = %q", step.name, problems)
		}
	}
}
