// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"maps"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
				Port      string `json:"port"`
				TLSConfig struct {
					Cert struct {
						Secret corev1.SecretKeySelector `json:"secret"`
					} `json:"cert"`
					KeySecret corev1.SecretKeySelector `json:"keySecret"`
				} `json:"tlsConfig"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &monitor); err != nil {
		t.Fatal(err)
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if endpoint.Port != portAdmin {
		t.Errorf("port = %q, want %q", endpoint.Port, portAdmin)
	}
	for got, key := range map[corev1.SecretKeySelector]string{
		endpoint.TLSConfig.Cert.Secret: corev1.TLSCertKey, endpoint.TLSConfig.KeySecret: corev1.TLSPrivateKeyKey,
	} {
		if got.Name != MetricsSecret || got.Key != key {
			t.Errorf("%s of Secret %q, want %s of %s", got.Key, got.Name, key, MetricsSecret)
		}
	}
	if got := monitor.Spec.Selector.MatchLabels; !maps.Equal(got, Selector()) {
		t.Errorf("selector = %v, labels of proxies %v", got, Selector())
	}
}
