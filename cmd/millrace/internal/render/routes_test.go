// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing/routingtest"
)

// TestRoutesGolden uses the testdata of package routing.
func TestRoutesGolden(t *testing.T) {
	directories, err := filepath.Glob("../routing/testdata/*")
	if err != nil || len(directories) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, directory := range directories {
		compiled := routing.Compile(routingtest.Load(t, directory))
		for _, output := range []struct {
			file    string
			choice  routing.Choice
			options Options
		}{
			{"routes.txt", routing.Choice{}, Options{Width: 80}},
			{"routes-wide.txt", routing.Choice{}, Options{Format: Wide, Width: 80}},
			{"routes.json", routing.Choice{}, Options{Format: JSON}},
			{"host.txt", routing.Choice{Host: "www.shop.example.com"}, Options{Width: 80}},
			{"namespace.txt", routing.Choice{Namespace: "default"}, Options{Width: 80}},
		} {
			t.Run(filepath.Base(directory)+"/"+output.file, func(t *testing.T) {
				view, err := compiled.View(output.choice)
				if err != nil {
					t.Fatal(err)
				}
				var have bytes.Buffer
				if err := Routes(&have, view, output.options); err != nil {
					t.Fatal(err)
				}
				compare(t, filepath.Join(directory, output.file), have.String())
				if output.options.Format == Text {
					checkWidth(t, have.String(), output.options.Width)
				}
			})
		}
	}
}

func TestRoutesAreOneScreen(t *testing.T) {
	view := &routing.View{}
	for i := range 2 {
		owner := routing.Owner{Name: routing.Name{Kind: "Gateway", Namespace: "shop", Name: fmt.Sprint(i)}}
		for j := range 2500 {
			owner.Rules = append(owner.Rules, routing.Rule{Hostname: fmt.Sprintf("h%d.example.com", j), Answer: "500"})
		}
		view.Owners = append(view.Owners, owner)
		for range 100 {
			view.Problems = append(view.Problems, routing.Problem{Reason: "R", Message: "m"})
		}
	}
	var text bytes.Buffer
	if err := Routes(&text, view, Options{Width: 80}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(text.String(), "\n"); lines > 160 {
		t.Errorf("%d lines", lines)
	}
	for _, want := range []string{"… and 4900 more: millrace routes HOST", "… and 180 more: millrace routes -o wide"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in:\n%s", want, text.String())
		}
	}
	var raw bytes.Buffer
	if err := Routes(&raw, view, Options{Format: JSON}); err != nil {
		t.Fatal(err)
	}
	var decoded routing.View
	if err := json.Unmarshal(raw.Bytes(), &decoded); err != nil {
		t.Fatal(err)
	}
	if len(decoded.Owners[1].Rules) != 2500 || len(decoded.Problems) != 200 {
		t.Errorf("JSON has %d rules and %d problems", len(decoded.Owners[1].Rules), len(decoded.Problems))
	}
}
