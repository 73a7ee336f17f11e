// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/route"
)

// TestCertificateOfOwnNamespace: who may bring a certificate for a host that has the class's own: an
// Ingress of the namespace that has the host.
func TestCertificateOfOwnNamespace(t *testing.T) {
	const file = "testdata/ingress/tls_strangers.txtar"
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects := parse(t, file, txtar.Parse(archive).Files[0].Data)
	at := slices.IndexFunc(objects.Ingresses, func(i *networkingv1.Ingress) bool { return i.Name == "stranger" })
	if at < 0 {
		t.Fatal("the scenario has no Ingress stranger")
	}
	for _, secret := range objects.Secrets {
		if secret.Name == "false" {
			secret.Namespace = "shop"
		}
	}
	objects.Ingresses[at].Namespace = "shop"
	result := route.Compile(objects, route.DefaultSettings())
	for _, host := range []string{"a.example", "b.example", "d.example"} {
		line := "full " + host + " shop/false"
		if got := certificates(result, line); got != line {
			t.Errorf("certificates are %s, want %s", got, line)
		}
	}
}
