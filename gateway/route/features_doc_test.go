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

	"github.com/millrace-lb/millrace/gateway/route/internal/gatewayapi"
)

func TestFeaturesAreDocumented(t *testing.T) {
	content, err := os.ReadFile("../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(content), "\n## Features of Gateway API\n")
	if !found {
		t.Fatal("docs/gateway.md has no section on Gateway API features")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	_, section, _ = strings.Cut(section, "\n### Supported\n")
	yes, no, found := strings.Cut(section, "\n### Not supported\n")
	if !found {
		t.Fatal("docs/gateway.md does not list supported and unsupported features")
	}
	supported, missing := named(yes), named(no)
	slices.Sort(supported)
	if !slices.Equal(supported, gatewayapi.Features()) {
		t.Errorf("documented as supported:\n%q\nimplemented:\n%q", supported, gatewayapi.Features())
	}
	mesh := features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures)
	all := features.SetsToNamesSet(features.AllFeatures).Difference(mesh)
	if rest := all.Difference(sets.New(supported...)); !rest.Equal(sets.New(missing...)) {
		t.Errorf("documented as not supported: %q, want %q", missing, rest.UnsortedList())
	}
}

var featureName = regexp.MustCompile("`([A-Za-z0-9]+)`")

func named(text string) []features.FeatureName {
	var found []features.FeatureName
	for _, match := range featureName.FindAllStringSubmatch(text, -1) {
		found = append(found, features.FeatureName(match[1]))
	}
	return found
}
