// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cutover"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/frrk8s"
)

type peers []millracev1beta1.LBPeer

func (p peers) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("nothing but LBPeers is read")
}

func (p peers) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*millracev1beta1.LBPeerList).Items = slices.Clone(p)
	return nil
}

// speakersOwn is written by the speaker of node1.
const speakersOwn = `
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: metallb-node1, namespace: metallb-system}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: node1}}
  bgp: {routers: [{asn: 64513, neighbors: [{address: 198.51.100.101, asn: 64512}, {address: "2001:db8:0:1::101", asn: 64512}]}]}
`

func learner(router, more string) string {
	return `
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: learn, namespace: metallb-system}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: node1}}
  bgp: {routers: [{asn: 64513, neighbors: [{address: ` + router + `, asn: 64512, toReceive: {allowed: {mode: all}}}]}]}
` + more
}

// inFRRK8sMode returns a cluster of node1 whose FRR prints these sessions.
func inFRRK8sMode(t *testing.T, printed string, configurations ...string) *Cutover {
	t.Helper()
	speaker := corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{
		{Name: "speaker", Env: []corev1.EnvVar{{Name: "METALLB_BGP_TYPE", Value: "frr-k8s"}}},
	}}}
	pod := func(name string, spec corev1.PodSpec) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: name, Labels: map[string]string{"app": name}},
			Spec:       spec, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
	}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "speaker"}}
	set.Spec.Template = speaker
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "speaker"}}
	daemon := corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{
		{Name: "frr"}, {Name: "controller", Command: []string{"/frr-k8s"}},
	}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{corev1.LabelHostname: "node1"}}}
	var objects []runtime.Object
	for _, text := range configurations {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	kinds := map[schema.GroupVersionResource]string{frrk8s.Resource: "FRRConfigurationList"}
	others := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	peer := millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: "router1"}}
	peer.Spec.Router = millracev1beta1.Router{Address: "198.51.100.101"}
	peer.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{millracev1beta1.LabelAnnouncer: millracev1beta1.AnnouncerMillrace}}
	return &Cutover{
		clients: fake.NewClientset(set, node, pod("speaker", speaker.Spec), pod("frr-k8s", daemon)), configurations: others.Resource(frrk8s.Resource),
		reader: peers{peer}, namespace: "metallb-system", name: "speaker",
		run: func(_ context.Context, what containerCommand) ([]byte, error) {
			if what.pod.Name != "frr-k8s" || what.container != "frr" || what.command[0] != "vtysh" {
				t.Errorf("%v is run in container %s of pod %s", what.command, what.container, what.pod.Name)
			}
			return []byte(printed), nil
		},
	}
}

const oneOfTwo = `{"default": {"vrfId": 0, "198.51.100.101": {"bgpState": "Established"}, "2001:db8:0:1::101": {"bgpState": "Active"},
	"198.51.100.102": {"bgpState": "Established"}}}`

func TestSpeakerByFRRK8s(t *testing.T) {
	for name, test := range map[string]struct {
		configurations []string
		want           cutover.Speaker
	}{
		"beside another's":           {[]string{speakersOwn, learner("198.51.100.102", "")}, cutover.Speaker{Pod: "speaker", Established: 1, Sessions: 2}},
		"it has not written its own": {[]string{learner("198.51.100.102", "")}, cutover.Speaker{Pod: "speaker"}},
	} {
		got, err := inFRRK8sMode(t, oneOfTwo, test.configurations...).Speaker(t.Context(), "node1")
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, test.want)
		}
	}
	if _, err := inFRRK8sMode(t, "bgpd is not running", speakersOwn).Speaker(t.Context(), "node1"); err == nil {
		t.Error("an FRR that prints nothing is taken for one without sessions")
	}
}

func TestWithdraw(t *testing.T) {
	h := inFRRK8sMode(t, oneOfTwo, speakersOwn, learner("198.51.100.102", ""))
	kept, err := h.RemainingSession(t.Context(), "node1")
	if err != nil || !strings.Contains(kept, "198.51.100.101") {
		t.Errorf("before: %q, %v", kept, err)
	}
	for range 2 {
		if err := h.Withdraw(t.Context(), "node1"); err != nil {
			t.Fatal(err)
		}
	}
	configurations := h.configurations.Namespace("metallb-system")
	if _, err := configurations.Get(t.Context(), "metallb-node1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the speaker's FRRConfiguration stays: %v", err)
	}
	if _, err := configurations.Get(t.Context(), "learn", metav1.GetOptions{}); err != nil {
		t.Errorf("another's FRRConfiguration: %v", err)
	}
	h.run = func(context.Context, containerCommand) ([]byte, error) {
		return []byte(`{"default": {"198.51.100.102": {"bgpState": "Established"}}}`), nil
	}
	if kept, err := h.RemainingSession(t.Context(), "node1"); err != nil || kept != "" {
		t.Errorf("after: %q, %v", kept, err)
	}
}

func TestOtherUsers(t *testing.T) {
	const raw = "  raw: {rawConfig: \"router bgp 64513\"}\n"
	for name, test := range map[string]struct {
		other, want, failure string
	}{
		"another router":     {learner("198.51.100.102", ""), "frr-k8s keeps it", ""},
		"MetalLB's router":   {learner("198.51.100.101", ""), "", "learn keeps the session of frr-k8s on node node1 with router 198.51.100.101"},
		"raw configuration":  {learner("198.51.100.102", raw), "rawConfig is not evaluated", ""},
		"one of other nodes": {strings.ReplaceAll(learner("198.51.100.101", ""), "node1", "node2"), "frr-k8s keeps it", ""},
		"nobody else":        {strings.ReplaceAll(speakersOwn, "node1", "node2"), "", ""},
	} {
		lines, err := inFRRK8sMode(t, oneOfTwo, speakersOwn, test.other).OtherUsers(t.Context(), []string{"node1"})
		if test.failure != "" {
			if err == nil || !strings.Contains(err.Error(), test.failure) {
				t.Errorf("%s: %v, want %q", name, err, test.failure)
			}
			continue
		}
		if got := strings.Join(lines, "\n"); err != nil || !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
}

// In other modes no request is sent for frr-k8s, whose kinds may not be installed.
func TestWithdrawsBGP(t *testing.T) {
	for mode, want := range map[string]bool{"": false, "native": false, "frr": false, "frr-k8s": true} {
		pod := &corev1.PodSpec{Containers: []corev1.Container{{Name: "speaker", Env: []corev1.EnvVar{{Name: "METALLB_BGP_TYPE", Value: mode}}}}}
		if got := isBGPDelegated(pod); got != want {
			t.Errorf("mode %q: %t", mode, got)
		}
	}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "speaker"}}
	h := &Cutover{clients: fake.NewClientset(set), namespace: "metallb-system", name: "speaker"}
	kept, err := h.RemainingSession(t.Context(), "node1")
	lines, othersErr := h.OtherUsers(t.Context(), []string{"node1"})
	if err := errors.Join(err, othersErr, h.Withdraw(t.Context(), "node1")); err != nil || kept != "" || lines != nil {
		t.Errorf("mode native: %q, %v, %v", kept, lines, err)
	}
}

// In mode frr the sessions are read from the FRR container of the speaker's pod.
func TestSpeakerWithFRR(t *testing.T) {
	h := inFRRK8sMode(t, oneOfTwo)
	set, err := h.speakers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set.Spec.Template.Spec.Containers[0].Env = nil
	set.Spec.Selector.MatchLabels["app"] = "frr-k8s"
	h.clients = fake.NewClientset(set, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "frr-k8s", Labels: map[string]string{"app": "frr-k8s"}},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "frr"}, {Name: "speaker"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	})
	got, err := h.Speaker(t.Context(), "node1")
	if want := (cutover.Speaker{Pod: "frr-k8s", Established: 2, Sessions: 3}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
