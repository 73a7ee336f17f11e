// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/ingress-nginx.md")

const (
	page   = "../../docs/ingress-nginx.md"
	begins = "<!-- go test ./gateway/nginx -run TestDocumented -update writes this table. -->\n"
	ends   = "<!-- The table ends. -->\n"
)

func TestDocumented(t *testing.T) {
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, isBegun := strings.Cut(string(content), begins)
	have, after, isEnded := strings.Cut(rest, ends)
	if !isBegun || !isEnded {
		t.Fatalf("%s has no table between %q and %q", page, begins, ends)
	}
	want := "\n| Annotation | Handling | How, or why not |\n|---|---|---|\n"
	for _, each := range Annotations() {
		want += fmt.Sprintf("| `%s` | %s | %s |\n", each.Name, each.Handling, each.Note)
	}
	want += "\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+begins+want+ends+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Errorf("the table of %s is outdated: go test ./gateway/nginx -run TestDocumented -update", page)
	}
}
