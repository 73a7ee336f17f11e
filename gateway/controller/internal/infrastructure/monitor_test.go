// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"maps"
	"os"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestMonitorSelectsProxies(t *testing.T) {
	content, err := os.ReadFile("../../../../config/monitors/proxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var monitor struct {
		Spec struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			PodMetricsEndpoints []struct {
				Port string `json:"port"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &monitor); err != nil {
		t.Fatal(err)
	}
	if got := monitor.Spec.PodMetricsEndpoints[0].Port; got != portAdmin {
		t.Errorf("the port is %q, want %q", got, portAdmin)
	}
	if got := monitor.Spec.Selector.MatchLabels; !maps.Equal(got, Selector()) {
		t.Errorf("pods with %v are selected, proxies have %v", got, Selector())
	}
}
