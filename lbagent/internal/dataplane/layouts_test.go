// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
)

var updateLayouts = flag.String("update-layouts", "", "write the layouts of the maps to this file")

func currentLayouts(t testing.TB) map[string]layout.Map {
	t.Helper()
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSchema(spec, flowhash.Seed{})
	if err != nil {
		t.Fatal(err)
	}
	return s.layouts
}

func encodeLayouts(t testing.TB, layouts map[string]layout.Map) []byte {
	t.Helper()
	var lines [][]byte
	for _, name := range slices.Sorted(maps.Keys(layouts)) {
		line, err := json.Marshal(layouts[name])
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Appendf(nil, "%q: %s", name, line))
	}
	return fmt.Appendf(nil, "{\n%s\n}\n", bytes.Join(lines, []byte(",\n")))
}

// Each released version of the layouts has a file, and the last file equals the programs' layouts. Entries of
// each file can be converted to the current layouts and back.
func TestLayouts(t *testing.T) {
	current := currentLayouts(t)
	if *updateLayouts != "" {
		if err := os.WriteFile(*updateLayouts, encodeLayouts(t, current), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("layouts/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("layouts %v, %v", files, err)
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	var last map[string]layout.Map
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		last = nil
		if err := json.Unmarshal(content, &last); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, field := range checkConversion(t, file+" to now", last, current) {
			if removed[field] == "" {
				t.Errorf("%s: field %s was removed without a reason in removed", file, field)
			}
		}
		checkConversion(t, "now to "+file, current, last)
		for name := range last {
			if _, found := current[name]; !found && removed[name] == "" {
				t.Errorf("%s: map %s was removed without a reason in removed", file, name)
			}
		}
	}
	if !reflect.DeepEqual(last, current) {
		t.Errorf("the layouts differ from %s: run with -update-layouts, to a new file if that version was released, else to the same", files[len(files)-1])
	}
}

// removed lists removed maps and fields ("map value.field") of released versions, each with the reason why
// nothing is lost.
var removed = map[string]string{}

func checkConversion(t *testing.T, name string, from, to map[string]layout.Map) (lost []string) {
	t.Helper()
	for m, want := range to {
		previous, found := from[m]
		if !found || discardable[m] != "" {
			continue
		}
		converter, err := layout.NewConverter(previous, want)
		if err != nil {
			t.Errorf("%s: map %s: %v; add a converter, or a reason to discardable", name, m, err)
			continue
		}
		for _, field := range converter.Gone {
			lost = append(lost, m+" "+field)
		}
	}
	return lost
}

func TestDiscardable(t *testing.T) {
	current := currentLayouts(t)
	for name, why := range discardable {
		if _, found := current[name]; !found || why == "" {
			t.Errorf("map %s: reason %q", name, why)
		}
	}
}

func fieldsOf(t testing.TB, m *layout.Map, name string) *layout.Field {
	t.Helper()
	for i := range m.Value.Fields {
		if m.Value.Fields[i].Name == name {
			return &m.Value.Fields[i]
		}
	}
	t.Fatalf("no field %s in %+v", name, m.Value)
	return nil
}

// Numbers of enumerations in pinned maps do not change, unless the maps' meanings are incremented.
func TestNumbersInMaps(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"quota_kind":      "QUOTA_HALF_OPEN QUOTA_CONNECTIONS QUOTA_DATAGRAMS QUOTA_FRAGMENTS QUOTA_KINDS",
		"validation":      "VALIDATION_SYN VALIDATION_SYN_REUSED VALIDATION_MIDSTREAM VALIDATION_SYN_ACK VALIDATION_DONE VALIDATION_CONTESTED",
		"connection_flag": "CLIENT_FIN=1 CLIENT_RST=2 IN_OVERFLOW=4 OF_DATAGRAMS=8 END_SENT=16",
		"reverse_flag":    "REVERSE_CLAMP=1 SERVER_FIN=2 SERVER_RST=4",
	} {
		var enum *btf.Enum
		if err := spec.Types.TypeByName(name, &enum); err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, value := range enum.Values {
			text := value.Name
			if value.Value != uint64(i) {
				text += fmt.Sprintf("=%d", value.Value)
			}
			got = append(got, text)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("enum %s = %s, want %s", name, got, want)
		}
	}
}
