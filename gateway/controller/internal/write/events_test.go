// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// TestProtectionIsReportedOnce checks that a single event lists all access annotations.
func TestProtectionIsReportedOnce(t *testing.T) {
	class := "millrace"
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "guarded", UID: "1",
		Annotations: map[string]string{
			"nginx.ingress.kubernetes.io/auth-url":               "https://auth.example/",
			"nginx.ingress.kubernetes.io/whitelist-source-range": "203.0.113.0/24",
		},
	}, Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	objects := &model.Objects{
		Ingresses: []*networkingv1.Ingress{ingress},
		IngressClasses: []*networkingv1.IngressClass{{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: networkingv1.IngressClassSpec{Controller: model.DefaultSettings().IngressController},
		}},
	}
	recorder := events.NewFakeRecorder(10)
	w := &Writer{Recorder: recorder}
	for range 3 {
		w.report(&Compiled{Objects: objects, Result: route.Compile(objects, model.DefaultSettings())}, nil, nil)
	}
	close(recorder.Events)
	var recorded []string
	for event := range recorder.Events {
		recorded = append(recorded, event)
	}
	if len(recorded) != 1 || !strings.Contains(recorded[0], "Warning RestrictionIgnored") ||
		!strings.Contains(recorded[0], "/auth-url, ") || !strings.Contains(recorded[0], "/whitelist-source-range") {
		t.Errorf("events = %q; want one with both annotations", recorded)
	}
}

func many(namespace string, count, round int) (ingresses []*networkingv1.Ingress, problems []model.Problem) {
	for i := range count {
		name := fmt.Sprintf("i-%d", i)
		ingresses = append(ingresses, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(namespace + name),
		}})
		problems = append(problems, model.Problem{
			Object: model.Object{Kind: "Ingress", Namespace: namespace, Name: name}, Field: "spec", Reason: model.ReasonNotFound,
			Message: fmt.Sprintf("%s/%s: there is no Service s-%d", namespace, name, round),
		})
	}
	return ingresses, problems
}

func taken(recorder *events.FakeRecorder) (all []string) {
	for {
		select {
		case event := <-recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

// TestEventsOfATenantAreBounded checks that new problems in each pass do not delay another tenant's event.
func TestEventsOfATenantAreBounded(t *testing.T) {
	recorder := events.NewFakeRecorder(10_000)
	w := &Writer{Recorder: recorder}
	w.Prepare()
	reported := 0
	for round := range 20 {
		ingresses, problems := many("a", 200, round)
		others, theirs := many("z", 1, round)
		w.report(&Compiled{
			Objects: &model.Objects{Ingresses: append(ingresses, others...)}, Result: &model.Result{Problems: append(problems, theirs...)},
		}, nil, nil)
		isReported := false
		for _, event := range taken(recorder) {
			if strings.Contains(event, "a/i-") {
				reported++
			}
			isReported = isReported || strings.Contains(event, fmt.Sprintf("z/i-0: there is no Service s-%d", round))
		}
		if !isReported {
			t.Errorf("pass %d: the problem of the other namespace was not reported", round)
		}
	}
	// Plus one for each second of the test.
	if reported < burst-1 || reported > burst+5 {
		t.Errorf("%d events of one namespace within 20 passes, want about %d", reported, burst)
	}
}

// TestProblemsOfAnObjectAreOneEvent checks that an event lists new problems first.
func TestProblemsOfAnObjectAreOneEvent(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	w := &Writer{Recorder: recorder}
	w.Prepare()
	ingresses, problems := many("a", 1, 0)
	problem := func(text string) model.Problem {
		return model.Problem{Object: problems[0].Object, Field: text, Reason: model.ReasonNotFound, Message: text}
	}
	report := func(problems ...model.Problem) string {
		w.report(&Compiled{Objects: &model.Objects{Ingresses: ingresses}, Result: &model.Result{Problems: problems}}, nil, nil)
		return strings.Join(taken(recorder), " | ")
	}
	for i, test := range []struct{ event, want string }{
		{report(problem("one"), problem("two")), "Warning NotFound one; two"},
		{report(problem("one"), problem("two")), ""},
		{report(problem("one"), problem("three"), problem("two")), "Warning NotFound three; one; two"},
		{report(problem("one"), problem("two")), ""},
		{report(problem("one"), problem("three"), problem("two")), "Warning NotFound three; one; two"},
	} {
		if test.event != test.want {
			t.Errorf("pass %d: event %q, want %q", i, test.event, test.want)
		}
	}
}
