// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	const body = "\n\nThe reason.\n"
	longest := "bpf: " + strings.Repeat("x", 30) + " " + strings.Repeat("y", 36)
	for message, want := range map[string]string{
		"bpf: drop packets without a tag" + body:      "",
		"gateway/proxy, docs: bound responses" + body: "",
		longest + body:              "",
		longest + "z" + body:        "has 73 columns",
		"drop packets" + body:       `must be "area: verb object"`,
		"bpf: Drop packets" + body:  `must be "area: verb object"`,
		"bpf: drop" + body:          `must be "area: verb object"`,
		"bpf: drop packets." + body: "must not end with a period",
		"bpf: drop packets\n":       "a body that gives the reason is missing",
		"bpf: drop packets\n\n# Please enter the message.\n":    "a body that gives the reason is missing",
		"bpf: drop packets\nThe reason.\n":                      "an empty line must follow",
		"# A comment.\nbpf: drop packets\n\nThe reason.\n# x\n": "",
	} {
		err := check(message)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", message, err, want)
		}
	}
}
