// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"reflect"
	"testing"
)

func TestCommandsOfPage(t *testing.T) {
	page := "# A\n\n## B\n\n    not this\n\n## Uninstall\n\nFirst:\n\n    kubectl a b\n    kubectl c \\\n      d\n\nThen:\n\n    kubectl e\n\n## C\n\n    nor that\n"
	want := [][][]string{{{"kubectl", "a", "b"}, {"kubectl", "c", "d"}}, {{"kubectl", "e"}}}
	if got := commands(page, "Uninstall"); !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
