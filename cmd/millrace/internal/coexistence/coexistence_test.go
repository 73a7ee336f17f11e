// SPDX-License-Identifier: Apache-2.0

package coexistence

import (
	"slices"
	"strings"
	"testing"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

func TestFind(t *testing.T) {
	labelled := func(name, label, value string) []Workload {
		return []Workload{{Namespace: "kube-system", Name: "coredns"}, {Namespace: "other", Name: name, Labels: map[string]string{label: value}}}
	}
	for name, test := range map[string]struct {
		cluster Cluster
		level   consoleapi.Level
		message string
	}{
		"nobody":        {Cluster{Server: "v1.36.1", Cilium: map[string]string{"bpf-lb-acceleration": "disabled"}}, consoleapi.LevelOK, ""},
		"old":           {Cluster{Server: "v1.31.9"}, consoleapi.LevelFault, "1.32 or later"},
		"MetalLB":       {Cluster{Workloads: labelled("speaker", "app.kubernetes.io/name", "metallb")}, consoleapi.LevelWarning, "docs/migrate.md"},
		"old MetalLB":   {Cluster{Workloads: labelled("controller", "app", "metallb")}, consoleapi.LevelWarning, "namespace other"},
		"frr-k8s":       {Cluster{Workloads: labelled("frr-k8s-daemon", "app.kubernetes.io/name", "frr-k8s")}, consoleapi.LevelWarning, "FRRConfigurations"},
		"servicelb":     {Cluster{Workloads: labelled("svclb-web", "svccontroller.k3s.cattle.io/svcname", "web")}, consoleapi.LevelWarning, "serves 1 Services"},
		"k3s":           {Cluster{Kubelets: []string{"v1.36.1+k3s1"}}, consoleapi.LevelWarning, "--disable=servicelb"},
		"RKE2":          {Cluster{Kubelets: []string{"v1.36.1+rke2r1"}}, consoleapi.LevelOK, ""},
		"Cilium's IPAM": {Cluster{Cilium: map[string]string{"enable-lb-ipam": "true"}}, consoleapi.LevelWarning, "defaultLBServiceIPAM"},
		"without class": {Cluster{Cilium: map[string]string{"enable-lb-ipam": "true", "default-lb-service-ipam": "none"}}, consoleapi.LevelOK, ""},
		"Cilium's BGP":  {Cluster{Cilium: map[string]string{"enable-bgp-control-plane": "true"}}, consoleapi.LevelWarning, "sourceAddress"},
		"Cilium's XDP":  {Cluster{Cilium: map[string]string{"bpf-lb-acceleration": "native"}}, consoleapi.LevelFault, "acceleration=disabled"},
		"kube-vip":      {Cluster{Workloads: []Workload{{Namespace: "kube-system", Name: "kube-vip-ds"}}}, consoleapi.LevelWarning, "kube-vip-ds"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := slices.DeleteFunc(Find(&test.cluster), func(f consoleapi.Finding) bool { return f.Level == consoleapi.LevelOK })
			if test.level == consoleapi.LevelOK {
				if len(bad) > 0 {
					t.Errorf("found %+v", bad)
				}
				return
			}
			if len(bad) != 1 || bad[0].Level != test.level || !strings.Contains(bad[0].Message, test.message) {
				t.Errorf("found %+v, want a %s with %q", bad, test.level, test.message)
			}
		})
	}
}
