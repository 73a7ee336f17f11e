// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
	"github.com/millrace-lb/millrace/test/isolated"
)

// TestTenants checks with a real proxy that a tenant cannot affect older hosts of another namespace.
func TestTenants(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	for _, arguments := range []string{"link set lo up", "address add " + podOfShop + "/32 dev lo", "address add " + podOfNext + "/32 dev lo"} {
		if output, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", arguments, err, output)
		}
	}
	e := newEnvironment(t)
	e.gatewayAPI(t)
	e.client.MakeNamespaces(t, "other")
	e.pods(t, "shop", podOfShop)
	e.securePod(t, "secure", podOfNext)
	e.certificate(t, namespace, "*.mine.example.com")
	e.certificate(t, "other", "*.mine.example.com", "through.example.com", "plain.example.com")
	e.apply(t, "testdata/tenants-older.yaml")
	address, _ := e.run(t, nil)
	for _, account := range []types.NamespacedName{{Namespace: systemNamespace, Name: "ingressclass-nginx"}, edge} {
		token := e.token(t, account, infrastructure.Audience, e.pod(t, account, account.Name+"-1"))
		e.olderProxy(t, address, token, func(*resource.Filter) bool { return false })
	}
	check := func(t *testing.T) {
		for _, test := range []struct{ name, url, want string }{
			{"plain HTTP", "http://plain.example.com/", "200 shop / plain.example.com"},
			{"an alias", "http://alias.example.com/x", "200 shop /x alias.example.com"},
			{"host covered by a wildcard certificate", "https://pay.mine.example.com/", "200 shop / pay.mine.example.com"},
			{"host with TLS passthrough", "https://through.example.com/", "200 secure"},
			{"a guarded literal path", "http://literal.example.com/c++", "403"},
			{"path that matches as an expression", "http://literal.example.com/ccc", "200 shop /ccc literal.example.com"},
			{"host of a Gateway", "https://pay.mine.example.com:9443/", "200 shop / pay.mine.example.com:9443"},
			{"path matched by the guest's expression", "http://literal.example.com/xy", "200 shop /xy literal.example.com"},
		} {
			t.Run(test.name, func(t *testing.T) { e.hears(t, testRequest{url: test.url}, test.want) })
		}
		t.Run("a host without TLS", func(t *testing.T) { refusesTLS(t, "plain.example.com") })
	}
	if !t.Run("before", check) {
		t.FailNow()
	}
	e.isOlder(t, "literal-open")
	e.apply(t, "testdata/tenants-younger.yaml")
	e.hears(t, testRequest{url: "http://last.example.com/"}, "301 https://last.example.com")
	e.hears(t, testRequest{url: "https://last.mine.example.com:9443/"}, "302 https://taken.example.com:9443/")
	t.Run("after", func(t *testing.T) {
		t.Run("all", check)
		for name, text := range map[string]string{
			"listed": "the host is owned by an older object of another namespace", "guest": "the host is owned by an older object of another namespace",
			"alias": "belongs to an older object of another namespace", "expression": "which decides on expressions",
		} {
			ingress := &networkingv1.Ingress{}
			must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: "other", Name: name}, ingress))
			e.warnedOf(t, ingress, model.ReasonConflict, text)
		}
	})
	t.Run("invalid edits", func(t *testing.T) {
		e.editBadly(t)
		t.Run("all", check)
	})
}

// editBadly breaks an older Secret, Ingress and Gateway, and waits until all are reported.
func (e *environment) editBadly(t *testing.T) {
	t.Helper()
	secret, ingress := &corev1.Secret{}, &networkingv1.Ingress{}
	must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "tls"}, secret))
	broken, err := routetest.Parse([]byte(`{apiVersion: v1, kind: Secret, metadata: {annotations: {test/certificate: "*.mine.example.com", test/key: other}}}`))
	must(t, err)
	secret.Data = broken.Secrets[0].Data
	must(t, e.client.Update(t.Context(), secret))
	must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "literal"}, ingress))
	ingress.Annotations["nginx.ingress.kubernetes.io/whitelist-source-range"] = "127.99.0.x"
	must(t, e.client.Update(t.Context(), ingress))
	e.warnedOf(t, ingress, model.ReasonAnnotationRejected, "the previous version is still served")
	must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "pay"}, ingress))
	e.warnedOf(t, ingress, model.ReasonInvalidCertificate, "the previous certificate is still served")
	gateway, kind := &gatewayv1.Gateway{}, gatewayv1.HostnameAddressType
	must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "edge"}, gateway))
	gateway.Spec.Listeners[0].TLS.CertificateRefs[0].Name = "missing"
	gateway.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: "edge.example.com"}}
	must(t, e.client.Update(t.Context(), gateway))
	e.programmed(t, gateway, "Invalid")
}

func (e *environment) certificate(t *testing.T, of string, names ...string) {
	t.Helper()
	chain, key, err := routetest.Certificate(names...)
	must(t, err)
	e.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: of, Name: "tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	})
}

func (e *environment) securePod(t *testing.T, name, address string) {
	t.Helper()
	e.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	})
	e.create(t, slice(name, address))
	chain, key, err := routetest.Certificate("through.example.com")
	must(t, err)
	pair, err := tls.X509KeyPair(chain, key)
	must(t, err)
	listener, err := tls.Listen("tcp", address+":8080", &tls.Config{Certificates: []tls.Certificate{pair}})
	must(t, err)
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, name) }),
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { must(t, server.Close()) })
}

// isOlder waits until new objects are younger than an Ingress; timestamps have whole seconds.
func (e *environment) isOlder(t *testing.T, name string) {
	t.Helper()
	ingress := &networkingv1.Ingress{}
	must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, ingress))
	eventually(t, func(context.Context) error {
		if !time.Now().Truncate(time.Second).After(ingress.CreationTimestamp.Time) {
			return errors.New("new objects would have the same age")
		}
		return nil
	})
}

func refusesTLS(t *testing.T, host string) {
	t.Helper()
	connection, err := net.Dial("tcp", ofProxies+":8443")
	must(t, err)
	defer connection.Close()
	client := tls.Client(connection, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	if err := client.HandshakeContext(t.Context()); err == nil {
		t.Errorf("%s is served with a certificate for %v", host, client.ConnectionState().PeerCertificates[0].DNSNames)
	}
}
