// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Any of the terms may let a pod run, so each must exclude the label.
func TestExcludeSpeaker(t *testing.T) {
	terms := []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "edge", Operator: corev1.NodeSelectorOpExists}}}, {},
	}
	for name, affinity := range map[string]*corev1.Affinity{
		"none": nil,
		"two terms": {NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}},
	} {
		spec := &appsv1.DaemonSetSpec{}
		spec.Template.Spec.Affinity = affinity
		if !excludeMigrated(spec) || spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			t.Errorf("%s: nothing was changed, or pods restart: %+v", name, spec)
		}
		for _, term := range spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			last := term.MatchExpressions[len(term.MatchExpressions)-1]
			if last.Key != millracev1beta1.LabelAnnouncer || last.Operator != corev1.NodeSelectorOpDoesNotExist {
				t.Errorf("%s: a term permits pods: %+v", name, term)
			}
		}
		if excludeMigrated(spec) {
			t.Errorf("%s: changed twice", name)
		}
	}
}

// The series by an address alone is a leftover.
func TestSpeakerSessions(t *testing.T) {
	metrics := `# HELP metallb_bgp_session_up BGP session state
# TYPE metallb_bgp_session_up gauge
metallb_bgp_session_up{peer="198.51.100.101"} 0
metallb_bgp_session_up{peer="198.51.100.101:179"} 1
metallb_bgp_session_up{peer="198.51.100.102:179"} 0
metallb_bgp_updates_total{peer="198.51.100.101:179"} 1
`
	if established, all := speakerSessions([]byte(metrics)); established != 1 || all != 2 {
		t.Errorf("%d of %d sessions are established, want 1 of 2", established, all)
	}
}

func TestMetricsPort(t *testing.T) {
	container := func(name string, ports ...int32) corev1.Container {
		c := corev1.Container{Ports: []corev1.ContainerPort{{Name: "memberlist-tcp", ContainerPort: 7946}}}
		for _, port := range ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, ContainerPort: port})
		}
		return c
	}
	for name, test := range map[string]struct {
		container corev1.Container
		want      string
	}{
		"a manifest's":  {container("monitoring", 7473), "7473"},
		"the chart's":   {container("metrics", 7474), "7474"},
		"none is named": {container(""), "7472"},
	} {
		if got := metricsPort(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{test.container}}}); got != test.want {
			t.Errorf("%s: queries port %s, want %s", name, got, test.want)
		}
	}
}
