// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/test/isolated"
)

// TestGuards checks access filters with a real proxy for each spelling of a path, and for rules that are
// invalid, too large or not UTF-8.
func TestGuards(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	for _, arguments := range []string{"link set lo up", "address add " + podOfShop + "/32 dev lo", "address add " + podOfAuth + "/32 dev lo"} {
		if output, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", arguments, err, output)
		}
	}
	e := newEnvironment(t)
	e.gatewayAPIOf(t, "experimental")
	e.class(t)
	e.pods(t, "shop", podOfShop)
	e.pods(t, "auth", podOfAuth)
	e.guards(t)
	address, _ := e.run(t, func(c *controller.Config) { c.NamespaceBytes = quantity.MustParse("60k") })
	account := types.NamespacedName{Namespace: systemNamespace, Name: "ingressclass-nginx"}
	token := e.token(t, account, infrastructure.Audience, e.pod(t, account, "nginx-1"))
	known := func(*resource.Filter) bool { return false }
	e.olderProxy(t, address, token, known)
	const port = 9090
	e.gateway(t, fmt.Sprintf("HTTP/%d", port))
	e.create(t, guardedRoute())
	e.olderProxy(t, address, e.token(t, edge, infrastructure.Audience, e.pod(t, edge, "edge-1")), known)

	for _, test := range []struct {
		port         int
		host, target string
		want         string
	}{
		{8080, "spelling", "/x//y", "200 shop /x//y"},
		{8080, "spelling", "/admin", "403"},
		{8080, "spelling", "//admin", "403"},
		{8080, "spelling", "///admin", "403"},
		{8080, "spelling", "/.//admin", "403"},
		{8080, "spelling", "/x/..//admin", "403"},
		{8080, "spelling", "/%2fadmin", "403"},
		{8080, "spelling", "http://spelling.example.com//admin", "403"},
		{8080, "lookahead", "/x", "200 shop /x"},
		{8080, "lookahead", "/admin/x", "403"},
		{8080, "atomic", "/admin/x", "403"},
		{8080, "space", "/admin%20area", "403"},
		{8080, "room", "/", "200 shop /"},
		{8080, "room", "/admin", "500"},
		{8080, "odd", "/", "200 shop /"},
		{8080, "odd", "/guarded", "500"},
		{8080, "odd", "/unguarded", "200 shop /unguarded"},
		{port, "route", "/", "200 shop /"},
		{port, "route", "/admin", "401"},
		{port, "route", "//admin", "401"},
		{port, "route", "/a%20b", "401"},
		{port, "route", "/caf%C3%A9", "401"},
		{port, "route", "/lookahead/x", "401"},
		{port, "route", "/extension/x", "500"},
	} {
		eventually(t, func(ctx context.Context) error {
			got, err := raw(ctx, test.port, test.host+".example.com", test.target)
			if err == nil && got != test.want {
				err = fmt.Errorf("response of %s for host %s = %q, want %q", test.target, test.host, got, test.want)
			}
			return err
		})
	}
	for name, want := range map[string][2]string{
		"guarded-odd":   {model.ReasonAnnotationRejected, "it is not valid UTF-8"},
		"unguarded-odd": {model.ReasonInvalid, "it is not valid UTF-8"},
		"lookahead":     {model.ReasonInvalid, "requests that it could match get 500"},
		"guarded-room":  {model.ReasonLimitExceeded, ""},
	} {
		ingress := &networkingv1.Ingress{}
		must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, ingress))
		e.warnedOf(t, ingress, want[0], want[1])
	}
	e.create(t, guarded("later-odd", "odd", "/later", nil))
	eventually(t, func(ctx context.Context) error {
		if got, err := raw(ctx, 8080, "odd.example.com", "/later"); err != nil || got != "200 shop /later" {
			return fmt.Errorf("%q, %w", got, err)
		}
		return nil
	})
	e.proxy(t, address, token).receives(t, func(has configuration) error {
		if has["group/odd.example.com"] == nil {
			return fmt.Errorf("no routing rules for the host in %d resources", len(has))
		}
		return nil
	})
}

// raw sends a request with an unmodified target and returns status and body.
func raw(ctx context.Context, port int, host, target string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", ofProxies, port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, host); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Sprint(response.StatusCode), err
	}
	return fmt.Sprint("200 ", strings.TrimSuffix(string(text), " "+host)), err
}

func guarded(name, host, path string, annotations map[string]string) *networkingv1.Ingress {
	class, kind := "nginx", networkingv1.PathTypeImplementationSpecific
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}}}
	for key, value := range annotations {
		ingress.Annotations["nginx.ingress.kubernetes.io/"+key] = value
	}
	ingress.Spec.IngressClassName = &class
	ingress.Spec.Rules = []networkingv1.IngressRule{{Host: host + ".example.com", IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &kind, Backend: networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "shop", Port: networkingv1.ServiceBackendPort{Name: "http"}},
		}}}},
	}}}
	return ingress
}

// guards writes Ingresses with invalid strings as protobuf, which the API server does not validate.
func (e *environment) guards(t *testing.T) {
	t.Helper()
	e.create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "nginx"}, Data: map[string]string{"annotations": "ingress-nginx"}})
	kind, scope, at := "ConfigMap", "Namespace", systemNamespace
	e.create(t, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "nginx"}, Spec: networkingv1.IngressClassSpec{
		Controller: model.IngressController,
		Parameters: &networkingv1.IngressClassParametersReference{Kind: kind, Scope: &scope, Namespace: &at, Name: "nginx"},
	}})
	allow := map[string]string{"whitelist-source-range": "198.51.100.0/24"}
	regular := map[string]string{"whitelist-source-range": "198.51.100.0/24", "use-regex": "true"}
	for _, host := range []string{"spelling", "lookahead", "atomic", "space", "room", "odd"} {
		e.create(t, guarded("open-"+host, host, "/", nil))
	}
	e.create(t, guarded("spelling", "spelling", "/admin", allow))
	e.create(t, guarded("lookahead", "lookahead", "/admin(?!/public).*", regular))
	e.create(t, guarded("atomic", "atomic", "/admin(?>/a|/b)", regular))
	e.create(t, guarded("space", "space", "/admin area", allow))
	var prefixes []string
	for i := range 3000 {
		prefixes = append(prefixes, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
	}
	e.create(t, guarded("guarded-room", "room", "/admin", map[string]string{"whitelist-source-range": strings.Join(prefixes, ",")}))
	binary := *e.server.Admin()
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(&binary)
	must(t, err)
	for _, ingress := range []*networkingv1.Ingress{
		guarded("guarded-odd", "odd", "/guarded", map[string]string{"whitelist-source-range": "198.51.100.0/24", "upstream-vhost": "a\xff"}),
		guarded("unguarded-odd", "odd", "/unguarded", map[string]string{"upstream-vhost": "a\xff"}),
	} {
		_, err := client.NetworkingV1().Ingresses(namespace).Create(t.Context(), ingress, metav1.CreateOptions{})
		must(t, err)
	}
}

func guardedRoute() *gatewayv1.HTTPRoute {
	port := gatewayv1.PortNumber(80)
	reference := func(name string) gatewayv1.BackendObjectReference {
		return gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(name), Port: &port}
	}
	backends := []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: reference("shop")}}}
	external := []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterExternalAuth, ExternalAuth: &gatewayv1.HTTPExternalAuthFilter{
		ExternalAuthProtocol: gatewayv1.HTTPRouteExternalAuthHTTPProtocol, BackendRef: reference("auth"), HTTPAuthConfig: &gatewayv1.HTTPAuthConfig{},
	}}}
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "guarded"}}
	route.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "edge"}}
	route.Spec.Hostnames = []gatewayv1.Hostname{"route.example.com"}
	route.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: backends}}
	for _, match := range [][2]string{{"PathPrefix", "/admin"}, {"PathPrefix", "/a%20b"}, {"Exact", "/caf%C3%A9"}, {"RegularExpression", "/lookahead(?!/x)"}} {
		kind := gatewayv1.PathMatchType(match[0])
		route.Spec.Rules = append(route.Spec.Rules, gatewayv1.HTTPRouteRule{
			Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &kind, Value: &match[1]}}},
			Filters: external, BackendRefs: backends,
		})
	}
	kind, value := gatewayv1.PathMatchRegularExpression, "/extension(?!/y)"
	route.Spec.Rules = append(route.Spec.Rules, gatewayv1.HTTPRouteRule{
		Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &kind, Value: &value}}},
		Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterExtensionRef, ExtensionRef: &gatewayv1.LocalObjectReference{
			Group: "example.com", Kind: "Guard", Name: "g"}}}, BackendRefs: backends,
	})
	return route
}
