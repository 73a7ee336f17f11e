// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
	"github.com/millrace-lb/millrace/test/isolated"
)

const (
	permitted, stranger = "127.77.0.2", "127.77.0.3"
	podOfShop           = "198.18.0.1"
	podOfNext           = "198.18.0.2"
	podOfAuth           = "198.18.0.3"
)

// TestIngressNginx serves Ingresses written for ingress-nginx with a real proxy.
func TestIngressNginx(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	for _, arguments := range []string{"link set lo up", "address add " + podOfShop + "/32 dev lo", "address add " + podOfNext + "/32 dev lo", "address add " + podOfAuth + "/32 dev lo"} {
		if output, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", arguments, err, output)
		}
	}
	e := newEnvironment(t)
	e.pods(t, "shop", podOfShop)
	e.pods(t, "next", podOfNext)
	e.pods(t, "auth", podOfAuth)
	e.nginxObjects(t)
	address, _ := e.run(t, nil)
	account := types.NamespacedName{Namespace: systemNamespace, Name: "ingressclass-nginx"}
	e.olderProxy(t, address, e.token(t, account, infrastructure.Audience, e.pod(t, account, "nginx-1")), func(*resource.Filter) bool { return false })

	for _, test := range []struct {
		name    string
		request testRequest
		want    string
	}{
		{"redirect of plain HTTP to HTTPS", testRequest{url: "http://shop.example.com/a?b"}, "308 https://shop.example.com/a?b"},
		{"over TLS", testRequest{url: "https://shop.example.com/a?b"}, "200 shop /a?b shop.example.com"},
		{"rewrite with groups", testRequest{url: "https://shop.example.com/api/v1/x?y=z"}, "200 shop /v1/x?y=z shop.example.com"},
		{"case-insensitive path", testRequest{url: "https://shop.example.com/API"}, "200 shop / shop.example.com"},
		{"canary by header", testRequest{url: "https://shop.example.com/a", header: "X-Canary: always"}, "200 next /a shop.example.com"},
		{"canary by cookie", testRequest{url: "https://shop.example.com/a", header: "Cookie: x=y; canary=always"}, "200 next /a shop.example.com"},
		{"request without a canary match", testRequest{url: "https://shop.example.com/a", header: "X-Canary: never"}, "200 shop /a shop.example.com"},
		{"a permitted address", testRequest{url: "http://admin.example.com/"}, "401"},
		{"an address that is not", testRequest{url: "http://admin.example.com/", from: stranger, user: "jane:secret"}, "403"},
		{"a password", testRequest{url: "http://admin.example.com/", user: "jane:secret"}, "200 shop / inner.example.com"},
		{"a wrong password", testRequest{url: "http://admin.example.com/", user: "jane:other"}, "401"},
		{"user of a map", testRequest{url: "http://map.example.com/", user: "joe:secret"}, "200 shop / map.example.com"},
		{"an alias", testRequest{url: "http://alias.example.com/small", user: "jane:secret"}, "200 shop /small inner.example.com"},
		{"a service that says yes", testRequest{url: "http://asked.example.com/x", header: "X-Key: good"}, "200 shop /x asked.example.com"},
		{"denied by the authorization service", testRequest{url: "http://asked.example.com/x"}, "302 https://asked.example.com/oauth2/start?rd=http://asked.example.com%2Fx"},
		{"denied by the service of its own host", testRequest{url: "http://own.example.com/x"}, "401"},
		{"allowed by the service of its own host", testRequest{url: "http://own.example.com/x", header: "X-Key: good"}, "200 shop /x own.example.com"},
		{"a small body", testRequest{url: "http://admin.example.com/", user: "jane:secret", body: 1 << 10}, "200 shop / inner.example.com"},
		{"a large body", testRequest{url: "http://admin.example.com/", user: "jane:secret", body: 2 << 10}, "413"},
		{"moved", testRequest{url: "http://old.example.com/x?y"}, "301 https://new.example.com/x?y"},
		{"unsupported annotation", testRequest{url: "http://snippet.example.com/"}, "500"},
		{"missing users", testRequest{url: "http://missing.example.com/", user: "jane:secret"}, "500"},
	} {
		if !t.Run(test.name, func(t *testing.T) { e.hears(t, test.request, test.want) }) {
			// Other tests would probably time out.
			t.FailNow()
		}
	}
	t.Run("CORS preflight", func(t *testing.T) {
		got := test(t, testRequest{url: "http://cors.example.com/", method: http.MethodOptions, header: "Origin: https://a.example.com", more: "Access-Control-Request-Method: PUT"})
		if got.Header.Get("Access-Control-Allow-Origin") != "https://a.example.com" || !strings.Contains(got.Header.Get("Access-Control-Allow-Methods"), "PUT") {
			t.Errorf("header of the preflight response = %v", got.Header)
		}
	})
	t.Run("session affinity", e.keepsSession)
	t.Run("client limit", func(t *testing.T) {
		e.hears(t, testRequest{url: "http://limit.example.com/", from: "127.77.0.10"}, "200 shop / limit.example.com")
		e.hears(t, testRequest{url: "http://limit.example.com/", from: "127.77.0.10", often: 20}, "503")
	})
	for name, want := range map[string][2]string{
		"snippet": {model.ReasonAnnotationRejected, "configuration-snippet"},
		"missing": {model.ReasonAnnotationRejected, "there is no Secret shop/none of type Opaque"},
		"cors":    {model.ReasonAnnotationIgnored, "custom-http-errors"},
	} {
		ingress := &networkingv1.Ingress{}
		must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, ingress))
		e.warnedOf(t, ingress, want[0], want[1])
	}
	t.Run("changed password", e.newPassword)
}

func (e *environment) pods(t *testing.T, name, address string) {
	t.Helper()
	e.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	})
	e.create(t, slice(name, address))
	listener, err := net.Listen("tcp", address+":8080")
	must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if name == "auth" && r.Header.Get("X-Key") != "good" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s %s", name, r.RequestURI, r.Host)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { must(t, server.Close()) })
}

func (e *environment) nginxObjects(t *testing.T) {
	t.Helper()
	chain, key, err := routetest.Certificate("shop.example.com")
	must(t, err)
	e.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shop-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	})
	e.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "users"}, Data: map[string][]byte{"auth": []byte("jane:" + sha("secret") + "\n")}})
	e.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "map"}, Data: map[string][]byte{"joe": []byte(sha("secret"))}})
	e.apply(t, "testdata/ingress-nginx.yaml")
}

func (e *environment) apply(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	kinds := map[string]func() client.Object{
		"ConfigMap":    func() client.Object { return &corev1.ConfigMap{} },
		"IngressClass": func() client.Object { return &networkingv1.IngressClass{} },
		"Service":      func() client.Object { return &corev1.Service{} },
		"Ingress":      func() client.Object { return &networkingv1.Ingress{} },
		"GatewayClass": func() client.Object { return &gatewayv1.GatewayClass{} },
		"Gateway":      func() client.Object { return &gatewayv1.Gateway{} },
		"ListenerSet":  func() client.Object { return &gatewayv1.ListenerSet{} },
		"HTTPRoute":    func() client.Object { return &gatewayv1.HTTPRoute{} },
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var meta metav1.TypeMeta
		must(t, yaml.Unmarshal([]byte(document), &meta))
		object := kinds[meta.Kind]()
		must(t, yaml.UnmarshalStrict([]byte(document), object))
		e.create(t, object)
	}
}

func sha(password string) string {
	sum := sha1.Sum([]byte(password))
	return "{SHA}" + base64.StdEncoding.EncodeToString(sum[:])
}

type testRequest struct {
	url, method, from, user string
	// header and more are "NAME: VALUE".
	header, more string
	// body is the body length, often the number of requests, of which the last one counts.
	body, often int
}

// send sends a request to the proxies, independent of its host.
func send(ctx context.Context, of testRequest) (*http.Response, string, error) {
	from := of.from
	if from == "" {
		from = permitted
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	direct := &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				_, port, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				if target := map[string]string{"80": "8080", "443": "8443"}[port]; target != "" {
					port = target
				}
				return dialer.DialContext(ctx, network, ofProxies+":"+port)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	method, body := of.method, io.Reader(nil)
	if of.body > 0 {
		method, body = http.MethodPost, strings.NewReader(strings.Repeat("x", of.body))
	}
	request, err := http.NewRequestWithContext(ctx, method, of.url, body)
	if err != nil {
		return nil, "", err
	}
	for _, header := range []string{of.header, of.more} {
		if name, value, found := strings.Cut(header, ": "); found {
			request.Header.Set(name, value)
		}
	}
	if name, password, found := strings.Cut(of.user, ":"); found {
		request.SetBasicAuth(name, password)
	}
	response, err := direct.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

func test(t *testing.T, of testRequest) *http.Response {
	t.Helper()
	response, _, err := send(t.Context(), of)
	must(t, err)
	return response
}

// hears waits for a response with this status and body or redirect.
func (e *environment) hears(t *testing.T, of testRequest, want string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		got := ""
		for range max(of.often, 1) {
			response, text, err := send(ctx, of)
			if err != nil {
				return err
			}
			got = fmt.Sprint(response.StatusCode)
			if to := response.Header.Get("Location"); to != "" {
				got += " " + to
			} else if response.StatusCode == http.StatusOK {
				got += " " + text
			}
		}
		if got != want {
			return fmt.Errorf("response to %+v = %q, want %q", of, got, want)
		}
		return nil
	})
}

// keepsSession checks that a session cookie is set once.
func (e *environment) keepsSession(t *testing.T) {
	var cookies []*http.Cookie
	eventually(t, func(ctx context.Context) error {
		response, _, err := send(ctx, testRequest{url: "http://session.example.com/"})
		if err != nil {
			return err
		}
		if cookies = response.Cookies(); len(cookies) != 1 || cookies[0].Name != "INGRESSCOOKIE" || cookies[0].MaxAge == 0 {
			return fmt.Errorf("%s with cookies %v", response.Status, cookies)
		}
		return nil
	})
	again := test(t, testRequest{url: "http://session.example.com/", header: "Cookie: " + cookies[0].Name + "=" + cookies[0].Value})
	if again.StatusCode != http.StatusOK || len(again.Cookies()) > 0 {
		t.Errorf("with its cookie the client receives %s and cookies %v", again.Status, again.Cookies())
	}
}

func (e *environment) newPassword(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "users"}, Data: map[string][]byte{"auth": []byte("jane:" + sha("fresh"))}}
	must(t, e.client.Update(t.Context(), secret))
	e.hears(t, testRequest{url: "http://admin.example.com/", user: "jane:secret"}, "401")
	e.hears(t, testRequest{url: "http://admin.example.com/", user: "jane:fresh"}, "200 shop / inner.example.com")
	must(t, e.client.Delete(t.Context(), secret))
	e.hears(t, testRequest{url: "http://admin.example.com/", user: "jane:fresh"}, "500")
}
