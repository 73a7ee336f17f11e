// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"testing"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

func TestNeedsUsers(t *testing.T) {
	const (
		class   = "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: web}, spec: {controller: millrace.io/ingress, parameters: {kind: ConfigMap, scope: Namespace, namespace: a, name: b}}}\n---\n"
		carries = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: b}, data: {annotations: ingress-nginx}}\n---\n"
		ours    = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: b}, data: {annotations: none}}\n---\n"
		other   = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: c}, data: {annotations: ingress-nginx}}\n---\n"
		ingress = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: a, name: i, annotations: {nginx.ingress.kubernetes.io/auth-secret: users}}}\n---\n"
	)
	for text, want := range map[string]bool{
		class + carries + ingress: true,
		class + carries:           false,
		class + ours + ingress:    false,
		class + other + ingress:   false,
		carries + ingress:         false,
	} {
		objects, err := routetest.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := route.NeedsUsers(objects); got != want {
			t.Errorf("NeedsUsers = %v for\n%s", got, text)
		}
	}
}
