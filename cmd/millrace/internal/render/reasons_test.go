// SPDX-License-Identifier: Apache-2.0

package render

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report/reporttest"
)

const apiNames = "../../../../api/v1beta1/names.go"

func knownReasons(t *testing.T) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), apiNames, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, is := node.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		known[text] = true
		return false
	})
	if len(known) < 20 {
		t.Fatalf("%d reasons in %s", len(known), apiNames)
	}
	return known
}

// Golden files contain only reasons that exist.
func TestGoldenReasonsExist(t *testing.T) {
	known := knownReasons(t)
	for _, directory := range goldenInputs(t) {
		for _, reason := range reasonsIn(reporttest.Load(t, directory)) {
			if !known[reason] {
				t.Errorf("%s: no constant of %s has the reason %s", directory, apiNames, reason)
			}
		}
	}
}

func reasonsIn(in *report.Input) []string {
	var reasons []string
	add := func(conditions []metav1.Condition) {
		for _, condition := range conditions {
			reasons = append(reasons, condition.Reason)
		}
	}
	for _, pool := range in.Pools {
		add(pool.Status.Conditions)
	}
	for _, peer := range in.Peers {
		add(peer.Status.Conditions)
	}
	for _, advertisement := range in.Advertisements {
		add(advertisement.Status.Conditions)
	}
	for _, vip := range in.VIPs {
		add(vip.Status.Conditions)
	}
	for _, service := range in.Services {
		add(service.Status.Conditions)
	}
	for _, nodeReport := range in.LBNodeReports {
		add(nodeReport.Status.Conditions)
		for _, withheld := range nodeReport.Status.VIPs.Withheld {
			reasons = append(reasons, withheld.Reason)
		}
		for _, exception := range nodeReport.Status.Exceptions {
			reasons = append(reasons, exception.Reason)
		}
	}
	for _, answer := range in.Agents.Responses {
		for _, group := range answer.Groups {
			if len(group.Peers) == 0 {
				reasons = append(reasons, group.Reason)
			}
		}
	}
	return reasons
}
