// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Each of the terms may let a pod run, so each has to keep it off.
func TestKeepOff(t *testing.T) {
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
		if !keepOff(spec) || spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			t.Errorf("%s: nothing was changed, or pods restart: %+v", name, spec)
		}
		for _, term := range spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			last := term.MatchExpressions[len(term.MatchExpressions)-1]
			if last.Key != millracev1alpha1.LabelAnnouncer || last.Operator != corev1.NodeSelectorOpDoesNotExist {
				t.Errorf("%s: a term lets pods run: %+v", name, term)
			}
		}
		if keepOff(spec) {
			t.Errorf("%s: it is changed twice", name)
		}
	}
}

// The series by an address alone is one that nothing sets.
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

// In mode frr a container beside the speaker tells the sessions. Manifests have it in front, the chart
// behind.
func TestMetricsPorts(t *testing.T) {
	container := func(name string, ports ...int32) corev1.Container {
		c := corev1.Container{Ports: []corev1.ContainerPort{{Name: "memberlist-tcp", ContainerPort: 7946}}}
		for _, port := range ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, ContainerPort: port})
		}
		return c
	}
	speaker, frr := container("monitoring", 7472), container("monitoring", 7473)
	for name, test := range map[string]struct {
		containers []corev1.Container
		want       []string
	}{
		"native":             {[]corev1.Container{speaker}, []string{"7472"}},
		"frr, of a manifest": {[]corev1.Container{frr, speaker}, []string{"7473", "7472"}},
		"frr, of the chart":  {[]corev1.Container{speaker, container("metrics", 7473)}, []string{"7472", "7473"}},
		"none is named":      {[]corev1.Container{container("")}, []string{"7472"}},
	} {
		if got := metricsPorts(&corev1.Pod{Spec: corev1.PodSpec{Containers: test.containers}}); !slices.Equal(got, test.want) {
			t.Errorf("%s: asks ports %v, want %v", name, got, test.want)
		}
	}
	metrics := `metallb_speaker_announced{ip="203.0.113.1"} 1
metallb_bgp_session_up{peer="198.51.100.101:179",vrf=""} 1
metallb_bgp_session_up{peer="198.51.100.102:179",vrf="red"} 0
`
	if established, all := speakerSessions([]byte(metrics)); established != 1 || all != 2 {
		t.Errorf("mode frr: %d of %d sessions are established, want 1 of 2", established, all)
	}
	frrk8s := `frrk8s_bgp_session_up{peer="198.51.100.101:179",vrf=""} 1` + "\n"
	if established, all := speakerSessions([]byte(frrk8s)); established != 1 || all != 1 {
		t.Errorf("mode frr-k8s: %d of %d sessions are established, want 1 of 1", established, all)
	}
}

// In mode frr-k8s a session outlives the speaker of its node: a move would have two of a node's address.
func TestSpeakersThatLeaveBGP(t *testing.T) {
	for mode, refused := range map[string]bool{"": false, "native": false, "frr": false, "frr-k8s": true, "frr-k8s-external": true} {
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "speaker"}}
		set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "speaker", Env: []corev1.EnvVar{{Name: "METALLB_BGP_TYPE", Value: mode}}}}
		clients := fake.NewClientset(set)
		h := &Handover{clients: clients, namespace: "metallb-system", name: "speaker"}
		if err := h.KeepOff(t.Context()); errors.Is(err, errLeavesBGP) != refused || (err != nil) != refused {
			t.Errorf("mode %q: %v", mode, err)
		}
		after, err := clients.AppsV1().DaemonSets("metallb-system").Get(t.Context(), "speaker", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if changed := after.Spec.Template.Spec.Affinity != nil; changed == refused {
			t.Errorf("mode %q: the DaemonSet was changed: %t", mode, changed)
		}
	}
}
