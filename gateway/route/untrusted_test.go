// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// TestCertificateOfOwnNamespace checks that the owner of a host can override the certificate of the class for
// it.
func TestCertificateOfOwnNamespace(t *testing.T) {
	const file = "testdata/ingress/tls_strangers.txtar"
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects := parse(t, file, txtar.Parse(archive).Files[0].Data)
	at := slices.IndexFunc(objects.Ingresses, func(i *networkingv1.Ingress) bool { return i.Name == "stranger" })
	if at < 0 {
		t.Fatal("the scenario has no Ingress named stranger")
	}
	for _, secret := range objects.Secrets {
		if secret.Name == "false" {
			secret.Namespace = "shop"
		}
	}
	objects.Ingresses[at].Namespace = "shop"
	result := route.Compile(objects, model.DefaultSettings())
	for _, host := range []string{"a.example", "b.example", "d.example"} {
		line := "full " + host + " shop/false"
		if got := certificates(result, line); got != line {
			t.Errorf("certificates = %s, want %s", got, line)
		}
	}
}

// TestInvalidUTF8Paths checks that invalid UTF-8 of a protobuf client is not sent to proxies, where it would
// block all configurations.
func TestInvalidUTF8Paths(t *testing.T) {
	const file = "testdata/ingress/path_rules.txtar"
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects := parse(t, file, txtar.Parse(archive).Files[0].Data)
	stranger := objects.Ingresses[0].DeepCopy()
	stranger.Namespace, stranger.Name = "other", "stranger"
	stranger.Spec.Rules = stranger.Spec.Rules[:1]
	stranger.Spec.Rules[0].Host = "stranger.example"
	stranger.Spec.Rules[0].HTTP.Paths = stranger.Spec.Rules[0].HTTP.Paths[:1]
	stranger.Spec.Rules[0].HTTP.Paths[0].Path = "/\xff"
	objects.Ingresses = append(objects.Ingresses, stranger)
	result := route.Compile(objects, model.DefaultSettings())
	for _, proxy := range result.Proxies {
		for _, r := range proxy.Resources {
			if _, err := proto.Marshal(r); err != nil {
				t.Errorf("encode resource %s: %v", r.GetName(), err)
			}
		}
	}
	if !slices.ContainsFunc(result.Problems, func(p model.Problem) bool {
		return p.Object.Name == "stranger" && p.Reason == model.ReasonInvalid
	}) {
		t.Errorf("the path is not reported: %v", result.Problems)
	}
}

// TestLongChain checks the maximum length of chains, because each handshake of a listener has its chain in
// memory.
func TestLongChain(t *testing.T) {
	const file = "testdata/ingress/tls.txtar"
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		bytes int
		want  string
	}{
		"long chain": {16 << 10, "web *.wild.example shop/wild"},
		"1 MiB":      {1 << 20, "web *.wild.example"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := parse(t, file, txtar.Parse(archive).Files[0].Data)
			for _, secret := range objects.Secrets {
				if chain := secret.Data[corev1.TLSCertKey]; secret.Name == "wild" {
					secret.Data[corev1.TLSCertKey] = bytes.Repeat(chain, tc.bytes/len(chain))
				}
			}
			result := route.Compile(objects, model.DefaultSettings())
			for _, want := range []string{tc.want, "web b.example shop/ab"} {
				if got := certificates(result, want); got != want {
					t.Errorf("certificates = %s, want %s", got, want)
				}
			}
		})
	}
}
