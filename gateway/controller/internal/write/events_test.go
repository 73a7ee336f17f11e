// SPDX-License-Identifier: Apache-2.0

package write

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/millrace-lb/millrace/gateway/route"
)

// TestProtectionIsToldOnce: one event names all protecting annotations, and is not repeated.
func TestProtectionIsToldOnce(t *testing.T) {
	class := "millrace"
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "guarded", UID: "1",
		Annotations: map[string]string{
			"nginx.ingress.kubernetes.io/auth-url":               "https://auth.example/",
			"nginx.ingress.kubernetes.io/whitelist-source-range": "203.0.113.0/24",
		},
	}, Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	objects := &route.Objects{
		Ingresses: []*networkingv1.Ingress{ingress},
		IngressClasses: []*networkingv1.IngressClass{{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: networkingv1.IngressClassSpec{Controller: route.DefaultSettings().IngressController},
		}},
	}
	recorder := events.NewFakeRecorder(10)
	w := &Writer{Recorder: recorder}
	for range 3 {
		w.tell(&Compiled{Objects: objects, Result: route.Compile(objects, route.DefaultSettings())}, nil, nil)
	}
	close(recorder.Events)
	var told []string
	for event := range recorder.Events {
		told = append(told, event)
	}
	if len(told) != 1 || !strings.Contains(told[0], "Warning Unprotected") ||
		!strings.Contains(told[0], "/auth-url, ") || !strings.Contains(told[0], "/whitelist-source-range") {
		t.Errorf("events are %q; want one that names both annotations", told)
	}
}
