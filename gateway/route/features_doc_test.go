// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/gateway-api/pkg/features"

	"github.com/millrace-lb/millrace/gateway/route"
)

// TestFeaturesAreDocumented compares the table of docs/gateway.md with the code, and with
// all features that Gateways can have.
func TestFeaturesAreDocumented(t *testing.T) {
	content, err := os.ReadFile("../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(content), "\n## Features of Gateway API\n")
	if !found {
		t.Fatal("docs/gateway.md has no section about the features of Gateway API")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var supported, missing []features.FeatureName
	name := regexp.MustCompile("`([A-Za-z0-9]+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		for _, match := range name.FindAllStringSubmatch(cells[2], -1) {
			supported = append(supported, features.FeatureName(match[1]))
		}
		for _, match := range name.FindAllStringSubmatch(cells[3], -1) {
			missing = append(missing, features.FeatureName(match[1]))
		}
	}
	slices.Sort(supported)
	if !slices.Equal(supported, route.Features()) {
		t.Errorf("documented as supported:\n%q\nin the code:\n%q", supported, route.Features())
	}
	mesh := features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures)
	all := features.SetsToNamesSet(features.AllFeatures).Difference(mesh)
	if rest := all.Difference(sets.New(supported...)); !rest.Equal(sets.New(missing...)) {
		t.Errorf("documented as not supported: %q, want %q", missing, rest.UnsortedList())
	}
}
