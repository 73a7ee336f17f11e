// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func peerOf(name string, router millracev1beta1.Router, nodes map[string]string) *millracev1beta1.LBPeer {
	peer := &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.LBPeerSpec{Router: router, PeerASN: 64512, LocalASN: 64513},
	}
	if nodes != nil {
		peer.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: nodes}
	}
	return peer
}

func nodeOf(name, rack string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}
}

// reportOf has an established session with each peer of up and an idle one with each of down.
func reportOf(name string, up, down []string) *millracev1beta1.LBNodeReport {
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for state, peers := range map[millracev1beta1.SessionState][]string{
		millracev1beta1.SessionEstablished: up, millracev1beta1.SessionIdle: down,
	} {
		for _, peer := range peers {
			report.Status.Sessions = append(report.Status.Sessions, millracev1beta1.SessionStatus{Peer: peer, State: state})
		}
	}
	return report
}

func TestCounts(t *testing.T) {
	router := millracev1beta1.Router{Address: "198.51.100.1"}
	notReady := reportOf("n2", []string{"tor"}, nil)
	notReady.Status.Conditions = []metav1.Condition{{Type: millracev1beta1.ConditionNodeReady, Status: metav1.ConditionFalse}}
	for _, test := range []struct {
		name    string
		peer    *millracev1beta1.LBPeer
		reports []*millracev1beta1.LBNodeReport
		want    millracev1beta1.SessionCounts
	}{
		{"no agent", peerOf("tor", router, nil), nil, millracev1beta1.SessionCounts{}},
		{"no session", peerOf("tor", router, nil), []*millracev1beta1.LBNodeReport{reportOf("n1", nil, []string{"tor"}), reportOf("n2", nil, nil)},
			millracev1beta1.SessionCounts{Desired: 2}},
		{"one of two", peerOf("tor", router, nil), []*millracev1beta1.LBNodeReport{reportOf("n1", []string{"tor"}, []string{"other"}), reportOf("n2", []string{"other"}, []string{"tor"})},
			millracev1beta1.SessionCounts{Established: 1, Desired: 2}},
		{"unready node", peerOf("tor", router, nil), []*millracev1beta1.LBNodeReport{reportOf("n1", []string{"tor"}, nil), notReady},
			millracev1beta1.SessionCounts{Established: 1, Desired: 2}},
		{"selected nodes", peerOf("tor", router, map[string]string{"rack": "b"}), []*millracev1beta1.LBNodeReport{reportOf("n1", nil, nil), reportOf("n2", []string{"tor"}, nil)},
			millracev1beta1.SessionCounts{Established: 1, Desired: 1}},
		{"report without a Node", peerOf("tor", router, nil), []*millracev1beta1.LBNodeReport{reportOf("gone", []string{"tor"}, nil)}, millracev1beta1.SessionCounts{}},
		{"a range", peerOf("tor", millracev1beta1.Router{Range: "198.51.100.0/24"}, nil), []*millracev1beta1.LBNodeReport{
			reportOf("n1", []string{"tor/198.51.100.1", "tor/198.51.100.2"}, []string{"tor/198.51.100.3"}), reportOf("n2", nil, nil),
		}, millracev1beta1.SessionCounts{Established: 2, Desired: 3}},
		{"an invalid peer", peerOf("tor", millracev1beta1.Router{}, nil), []*millracev1beta1.LBNodeReport{reportOf("n1", []string{"tor"}, nil)},
			millracev1beta1.SessionCounts{Established: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var reports []millracev1beta1.LBNodeReport
			for _, report := range test.reports {
				reports = append(reports, *report)
			}
			got := counts([]millracev1beta1.LBPeer{*test.peer}, []corev1.Node{*nodeOf("n1", "a"), *nodeOf("n2", "b")}, reports)
			if got[0] != test.want {
				t.Errorf("sessions = %+v, want %+v", got[0], test.want)
			}
		})
	}
}

// A session that flaps a hundred times causes few writes, and the last state is written.
func TestFlappingSessionCounts(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, millracev1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	writes, now := 0, time.Unix(1000, 0)
	peer := peerOf("tor", millracev1beta1.Router{Address: "198.51.100.1"}, nil)
	stored := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(peer).WithObjects(
		peer, nodeOf("n1", "a"), nodeOf("n2", "a"), reportOf("n1", []string{"tor"}, nil), reportOf("n2", []string{"tor"}, nil)).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(
			ctx context.Context, api client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
		) error {
			writes++
			return api.SubResource(sub).Patch(ctx, object, patch, options...)
		}}).Build()
	r := &countReconciler{client: stored, now: func() time.Time { return now }, backoffs: nil}
	look := func() time.Duration {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	var again time.Duration
	for i := range 200 {
		report := &millracev1beta1.LBNodeReport{}
		if err := stored.Get(t.Context(), client.ObjectKey{Name: "n1"}, report); err != nil {
			t.Fatal(err)
		}
		report.Status.Sessions[0].State = millracev1beta1.SessionIdle
		if i%2 == 0 {
			report.Status.Sessions[0].State = millracev1beta1.SessionEstablished
		}
		if err := stored.Update(t.Context(), report); err != nil {
			t.Fatal(err)
		}
		now = now.Add(3 * time.Second)
		again = look()
	}
	if writes < 2 || writes > 12 {
		t.Errorf("%d writes, want 2 to 12", writes)
	}
	for again > 0 {
		now = now.Add(again)
		again = look()
	}
	if err := stored.Get(t.Context(), client.ObjectKeyFromObject(peer), peer); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%+v", *peer.Status.Sessions), "{Established:1 Desired:2}"; got != want {
		t.Errorf("sessions = %s, want %s", got, want)
	}
}
