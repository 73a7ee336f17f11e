// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

type watched struct {
	t          *testing.T
	reconciler *sessionReconciler
	report     *millracev1beta1.LBNodeReport
	events     *events.FakeRecorder
	now        time.Time
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := millracev1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &watched{
		t: t, events: events.NewFakeRecorder(1000), now: time.Unix(1000, 0),
		report: &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "1"}},
	}
	w.reconciler = &sessionReconciler{
		client:   fake.NewClientBuilder().WithScheme(scheme).WithObjects(w.report).Build(),
		recorder: w.events, now: func() time.Time { return w.now }, reported: map[string]reportedSessions{},
	}
	return w
}

func (w *watched) see(up bool) time.Duration {
	w.t.Helper()
	condition := metav1.Condition{
		Type: millracev1beta1.ConditionBGPEstablished, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonEstablished,
	}
	if !up {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonNotEstablished
		condition.Message = "tor1 (198.51.100.1): no answer"
	}
	meta.SetStatusCondition(&w.report.Status.Conditions, condition)
	if err := w.reconciler.client.Update(w.t.Context(), w.report); err != nil {
		w.t.Fatal(err)
	}
	result, err := w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "node1"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return result.RequeueAfter
}

func (w *watched) expect(want string) {
	w.t.Helper()
	got := ""
	select {
	case got = <-w.events.Events:
	default:
	}
	if got != want && (want == "" || !strings.Contains(got, want)) {
		w.t.Errorf("event %q, want %q", got, want)
	}
}

func TestSessionEvents(t *testing.T) {
	w := newWatched(t)
	w.see(true)
	w.expect("")
	w.see(false)
	w.expect("Warning NotEstablished BGP sessions are not established: tor1 (198.51.100.1): no answer")
	w.see(false)
	w.expect("")
	w.now = w.now.Add(time.Minute)
	if wait := w.see(true); wait != sessionPause-time.Minute {
		t.Errorf("next check after %s", wait)
	}
	w.expect("")
	w.now = w.now.Add(sessionPause)
	w.see(true)
	w.expect("Normal Established all BGP sessions are established")
	// A new node of the same name starts over.
	w.report.UID = "2"
	w.see(false)
	w.expect("")
}

// A session that flaps every seven seconds for an hour causes one event in five minutes.
func TestFlappingSessionEvents(t *testing.T) {
	w := newWatched(t)
	for second := range 3600 {
		w.see(second%7 < 4)
		w.now = w.now.Add(time.Second)
	}
	if got, most := len(w.events.Events), int(time.Hour/sessionPause)+1; got < 2 || got > most {
		t.Errorf("%d events, want 2 to %d", got, most)
	}
}
