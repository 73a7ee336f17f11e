// SPDX-License-Identifier: Apache-2.0

package write

import (
	"encoding/json"
	"testing"
)

func TestContains(t *testing.T) {
	for name, test := range map[string]struct {
		has, wanted string
		want        bool
	}{
		"equal":                   {`{"a": 1, "b": ["x"]}`, `{"a": 1, "b": ["x"]}`, true},
		"added default":           {`{"a": {"b": 1, "c": 2}}`, `{"a": {"b": 1}}`, true},
		"added default in a list": {`[{"a": 1, "b": 2}]`, `[{"a": 1}]`, true},
		"additional element":      {`["x", "y"]`, `["x"]`, true},
		"null":                    {`{}`, `{"a": null}`, true},
		"empty object":            {`{}`, `{"a": {}}`, true},
		"different value":         {`{"a": 1}`, `{"a": 2}`, false},
		"zero":                    {`{"a": 1}`, `{"a": 0}`, false},
		"missing field":           {`{}`, `{"a": 0}`, false},
		"missing element":         {`["x"]`, `["x", "y"]`, false},
		"different order":         {`["y", "x"]`, `["x", "y"]`, false},
		"different type":          {`{"a": "1"}`, `{"a": {"b": 1}}`, false},
	} {
		var has, wanted any
		if err := json.Unmarshal([]byte(test.has), &has); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(test.wanted), &wanted); err != nil {
			t.Fatal(err)
		}
		if got := contains(has, wanted); got != test.want {
			t.Errorf("%s: %v; want %v", name, got, test.want)
		}
	}
}
