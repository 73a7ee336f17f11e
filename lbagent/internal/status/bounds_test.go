// SPDX-License-Identifier: Apache-2.0

package status

import (
	"os"
	"testing"

	"sigs.k8s.io/yaml"
)

// property is a subset of a schema.
type property struct {
	MaxItems   int                 `json:"maxItems"`
	MaxLength  int                 `json:"maxLength"`
	Properties map[string]property `json:"properties"`
	Items      *property           `json:"items"`
}

// The bounds equal the CRD's: one more item would invalidate the whole report.
func TestBoundsOfCRD(t *testing.T) {
	text, err := os.ReadFile("../../../config/crd/millrace.io_lbnodereports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema property `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	status := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties
	for name, most := range map[string]int{
		"interfaces": maxInterfaces, "sessions": maxSessions, "exceptions": maxExceptions, "servicesOverCapacity": maxOverCapacity,
		"duplicates": maxDuplicates, "l2VIPs": maxAnswering,
	} {
		if got := status[name].MaxItems; got != most {
			t.Errorf("maxItems of status.%s = %d, but up to %d are written", name, got, most)
		}
	}
	if most := status["exceptions"].Items.Properties["message"].MaxLength; most < maxItemMessage {
		t.Errorf("maxLength of exception messages = %d, but up to %d are written", most, maxItemMessage)
	}
}
