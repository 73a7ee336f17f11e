// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/test/mistakes"
)

// TestMistakes checks that the problems of an object have all texts of its case. Problems that other
// objects have because of it are ignored.
func TestMistakes(t *testing.T) {
	given, cases := mistakes.Read(t)
	var cluster strings.Builder
	for _, object := range given {
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		cluster.WriteString("---\n" + string(text))
	}
	cluster.WriteString("---\n{apiVersion: v1, kind: Namespace, metadata: {name: default}}\n")
	for _, test := range cases {
		t.Run(test.Name, func(t *testing.T) {
			object := test.Object()
			text, err := object.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			run(t.Context(), environment{
				args: []string{"millrace", "analyze", "-f", "-", "-o", "json"}, stdout: &stdout, stderr: &stderr,
				stdin: strings.NewReader(cluster.String() + "---\n" + string(text) + "\n"),
			})
			var view struct {
				Problems []struct{ Kind, Name, Reason, Message string }
			}
			if err := json.Unmarshal(stdout.Bytes(), &view); err != nil {
				t.Fatal(err, stderr.String())
			}
			var messages []string
			for _, problem := range view.Problems {
				if problem.Kind == test.Kind && problem.Name == object.GetName() && problem.Reason != "AttributeConflict" {
					messages = append(messages, problem.Message)
				}
			}
			if err := test.Missing(strings.Join(messages, "\n")); err != nil {
				t.Error(err)
			}
		})
	}
}
