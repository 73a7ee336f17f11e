// SPDX-License-Identifier: Apache-2.0

package ownership_test

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

var (
	worldHosts = []string{"a.x", "b.x", "*.x", "a.y", "www.a.y", "b.y", "*.y", ""}
	worldPaths = []string{"/", "/p", "/p/q", "/P", "/p.q", "/p(/|$)(.*)", "/.*", "/.well-known/acme-challenge/t", "/oauth2/auth", ""}
)

type world struct {
	classes      []*networkingv1.IngressClass
	parameters   *corev1.ConfigMap
	certificates bool
	of           map[string]*model.Objects
}

func (w *world) objects(namespaces ...string) *model.Objects {
	all := &model.Objects{
		IngressClasses: w.classes, ConfigMaps: []*corev1.ConfigMap{w.parameters},
		GatewayClasses: []*gatewayv1.GatewayClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "millrace"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: model.GatewayController},
		}},
	}
	for _, namespace := range namespaces {
		of := w.of[namespace]
		all.Ingresses = append(all.Ingresses, of.Ingresses...)
		all.Services = append(all.Services, of.Services...)
		all.Secrets = append(all.Secrets, of.Secrets...)
		all.Users = append(all.Users, of.Users...)
		all.ConfigMaps = append(all.ConfigMaps, of.ConfigMaps...)
		all.ReferenceGrants = append(all.ReferenceGrants, of.ReferenceGrants...)
		all.Gateways = append(all.Gateways, of.Gateways...)
		all.ListenerSets = append(all.ListenerSets, of.ListenerSets...)
		all.HTTPRoutes = append(all.HTTPRoutes, of.HTTPRoutes...)
		all.GRPCRoutes = append(all.GRPCRoutes, of.GRPCRoutes...)
		all.TLSRoutes = append(all.TLSRoutes, of.TLSRoutes...)
		all.BackendTLSPolicies = append(all.BackendTLSPolicies, of.BackendTLSPolicies...)
	}
	return all
}

func drawWorld(t *rapid.T) *world {
	of := func(values ...string) string { return rapid.SampledFrom(values).Draw(t, "parameter") }
	data := map[string]string{"annotations": of("ingress-nginx", "ingress-nginx", "none"), "hostOwnership": of("", "Strict", "InterNamespaceAllowed")}
	if data["hostOwnership"] == "" {
		delete(data, "hostOwnership")
	}
	for _, parameter := range [][2]string{{"defaultCertificate", "system/tls"}, {"sslRedirect", "true"}, {"defaultBackend", "system/s:80"}} {
		if of("no", "no", "yes") == "yes" {
			data[parameter[0]] = parameter[1]
		}
	}
	scope := networkingv1.IngressClassParametersReferenceScopeNamespace
	system := "system"
	w := &world{
		classes: []*networkingv1.IngressClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: networkingv1.IngressClassSpec{Controller: model.IngressController, Parameters: &networkingv1.IngressClassParametersReference{
				Kind: "ConfigMap", Name: "web", Namespace: &system, Scope: &scope,
			}},
		}},
		parameters:   &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "web"}, Data: data},
		certificates: rapid.IntRange(0, 15).Draw(t, "certificates") == 0,
		of:           map[string]*model.Objects{},
	}
	for age, namespace := range []string{"a", "b"} {
		w.of[namespace] = drawNamespace(t, namespace, age*100)
	}
	w.of["a"].Services = append(w.of["a"].Services, service(system))
	w.of["a"].Secrets = append(w.of["a"].Secrets, secret(system, "tls"))
	return w
}

func service(namespace string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

var worldCertificate = func() func() ([]byte, []byte) {
	var chain, key []byte
	return func() ([]byte, []byte) {
		if chain == nil {
			var err error
			if chain, key, err = routetest.Certificate("a.x", "b.x", "*.x", "a.y", "*.y"); err != nil {
				panic(err)
			}
		}
		return chain, key
	}
}()

func secret(namespace, name string) *corev1.Secret {
	chain, key := worldCertificate()
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	}
}

func meta(namespace, name string, age int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(time.Unix(int64(1_700_000_000+age), 0))}
}

func drawNamespace(t *rapid.T, namespace string, age int) *model.Objects {
	found := &model.Objects{
		Services: []*corev1.Service{service(namespace)},
		Secrets:  []*corev1.Secret{secret(namespace, "tls")},
		Users: []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "users"}, Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{"auth": []byte("a:{SHA}Ys23Ag/5IOWqZCw9QGaVDdHwH00=")}}},
		ConfigMaps: []*corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "headers"}, Data: map[string]string{"x-a": namespace}}},
	}
	if rapid.Bool().Draw(t, "grant") {
		grant := &gatewayv1.ReferenceGrant{ObjectMeta: meta(namespace, "grant", age)}
		grant.Spec.From = []gatewayv1.ReferenceGrantFrom{
			{Group: "networking.k8s.io", Kind: "Ingress", Namespace: "a"}, {Group: gatewayv1.GroupName, Kind: "HTTPRoute", Namespace: "a"},
		}
		grant.Spec.To = []gatewayv1.ReferenceGrantTo{{Kind: "Service"}}
		found.ReferenceGrants = append(found.ReferenceGrants, grant)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "ingresses") {
		found.Ingresses = append(found.Ingresses, drawIngress(t, meta(namespace, fmt.Sprint("i", i), age+i)))
	}
	if namespace == "b" && rapid.IntRange(0, 3).Draw(t, "answers") == 0 {
		// This is the path of external authorization, which affects the clients of the host.
		answering := drawIngress(t, meta(namespace, "answers", age+9))
		answering.Annotations = nil
		for i := range answering.Spec.Rules {
			if http := answering.Spec.Rules[i].HTTP; http != nil {
				http.Paths[0].Path = "/oauth2/auth"
			}
		}
		found.Ingresses = append(found.Ingresses, answering)
	}
	drawGatewayAPI(t, found, namespace, age)
	return found
}

func drawIngress(t *rapid.T, at metav1.ObjectMeta) *networkingv1.Ingress {
	class := "web"
	found := &networkingv1.Ingress{ObjectMeta: at, Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}}}
	for range rapid.IntRange(0, 2).Draw(t, "rules") {
		rule := networkingv1.IngressRule{Host: rapid.SampledFrom(worldHosts).Draw(t, "host")}
		for range rapid.IntRange(0, 2).Draw(t, "paths") {
			kind := rapid.SampledFrom([]networkingv1.PathType{"Prefix", "Exact", "ImplementationSpecific"}).Draw(t, "kind")
			if rule.HTTP == nil {
				rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
			}
			rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{
				Path: rapid.SampledFrom(worldPaths).Draw(t, "path"), PathType: &kind, Backend: backend,
			})
		}
		found.Spec.Rules = append(found.Spec.Rules, rule)
	}
	if rapid.IntRange(0, 2).Draw(t, "tls") > 0 {
		found.Spec.TLS = []networkingv1.IngressTLS{{
			Hosts:      rapid.SliceOfNDistinct(rapid.SampledFrom(worldHosts[:7]), 0, 2, rapid.ID).Draw(t, "tls hosts"),
			SecretName: rapid.SampledFrom([]string{"tls", "tls", "none", ""}).Draw(t, "secret"),
		}}
	}
	if rapid.IntRange(0, 3).Draw(t, "default") == 0 {
		found.Spec.DefaultBackend = &backend
	}
	found.Annotations = map[string]string{}
	for range rapid.IntRange(0, 3).Draw(t, "annotations") {
		name := rapid.SampledFrom(annotationNames).Draw(t, "annotation")
		values := annotationValues[strings.TrimPrefix(name, nginx.Prefix)]
		if values == nil {
			values = []string{"true", "1"}
		}
		found.Annotations[name] = rapid.SampledFrom(values).Draw(t, "value")
	}
	if found.Annotations[nginx.Prefix+"auth-secret"] != "" {
		found.Annotations[nginx.Prefix+"auth-type"] = "basic"
	}
	return found
}

var annotationValues = map[string][]string{
	"server-alias": {"b.x", "a.y", "b.y,*.x", "www.a.y"}, "app-root": {"/app"}, "rewrite-target": {"/", "/$2", "/p"},
	"auth-url": {"https://$host/oauth2/auth", "http://s.a.svc/auth", "https://a.y/oauth2/auth", "https://b.x/"}, "auth-secret": {"users"},
	"whitelist-source-range": {"198.51.100.0/24", "x"}, "custom-headers": {"headers"}, "affinity": {"cookie"}, "satisfy": {"any"},
	"configuration-snippet": {"more_set_headers 'A: b';", "deny all;"}, "upstream-vhost": {"$service_name", "v"}, "session-cookie-path": {"/p"},
	"permanent-redirect": {"https://z/"}, "proxy-body-size": {"1k"}, "limit-rps": {"5"}, "canary-weight": {"50"},
	"canary-by-header": {"x-c"}, "mirror-target": {"http://s.a.svc/"}, "backend-protocol": {"HTTPS", "GRPC"},
	"ssl-redirect": {"true", "false"}, model.AnnotationSSLRedirect: {"true", "false"}, model.AnnotationDedicatedVIP: {"true"},
}

// annotationNames contains all annotations. Those that apply to a whole host are repeated.
var annotationNames = func() []string {
	names := []string{model.AnnotationSSLRedirect, model.AnnotationDedicatedVIP}
	for _, of := range nginx.Annotations() {
		names = append(names, nginx.Prefix+of.Name)
	}
	for range 10 {
		for _, name := range []string{
			"server-alias", "app-root", "rewrite-target", "use-regex", "ssl-passthrough", "from-to-www-redirect", "force-ssl-redirect",
			"ssl-redirect", "auth-url", "auth-secret", "canary", "affinity",
		} {
			names = append(names, nginx.Prefix+name)
		}
	}
	return names
}()

func drawGatewayAPI(t *rapid.T, into *model.Objects, namespace string, age int) {
	const edge = "edge"
	if namespace == "a" {
		all := gatewayv1.NamespacesFromAll
		allowed := &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}}
		gateway := &gatewayv1.Gateway{ObjectMeta: meta("a", edge, age), Spec: gatewayv1.GatewaySpec{GatewayClassName: "millrace"}}
		gateway.Spec.AllowedListeners = &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &all}}
		gateway.Spec.Listeners = []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType, AllowedRoutes: allowed}}
		switch rapid.IntRange(0, 2).Draw(t, "listener") {
		case 0:
			mode := gatewayv1.TLSModePassthrough
			gateway.Spec.Listeners = append(gateway.Spec.Listeners, gatewayv1.Listener{
				Name: "tls", Port: 443, Protocol: gatewayv1.TLSProtocolType, AllowedRoutes: allowed, TLS: &gatewayv1.ListenerTLSConfig{Mode: &mode},
			})
		case 1:
			gateway.Spec.Listeners = append(gateway.Spec.Listeners, gatewayv1.Listener{
				Name: "https", Port: 443, Protocol: gatewayv1.HTTPSProtocolType, AllowedRoutes: allowed,
				TLS: &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "tls"}}},
			})
		}
		into.Gateways = append(into.Gateways, gateway)
	}
	drawListenerSets(t, into, namespace, age)
	of := gatewayv1.Namespace("a")
	parents := gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: edge, Namespace: &of}}}
	port := gatewayv1.PortNumber(80)
	backend := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{Name: "s", Port: &port}}
	hosts := func() (found []gatewayv1.Hostname) {
		for _, host := range rapid.SliceOfNDistinct(rapid.SampledFrom(worldHosts[:7]), 1, 2, rapid.ID).Draw(t, "hostnames") {
			found = append(found, gatewayv1.Hostname(host))
		}
		return found
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "routes") {
		found := &gatewayv1.HTTPRoute{ObjectMeta: meta(namespace, fmt.Sprint("r", i), age+i), Spec: gatewayv1.HTTPRouteSpec{CommonRouteSpec: parents, Hostnames: hosts()}}
		path := rapid.SampledFrom([]string{"/", "/p", "/p/q"}).Draw(t, "path")
		kind := rapid.SampledFrom([]gatewayv1.PathMatchType{gatewayv1.PathMatchPathPrefix, gatewayv1.PathMatchExact}).Draw(t, "match")
		found.Spec.Rules = []gatewayv1.HTTPRouteRule{{
			Matches:     []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &kind, Value: &path}}},
			BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: backend}},
		}}
		into.HTTPRoutes = append(into.HTTPRoutes, found)
	}
	switch rapid.IntRange(0, 5).Draw(t, "other route") {
	case 0:
		into.GRPCRoutes = append(into.GRPCRoutes, &gatewayv1.GRPCRoute{ObjectMeta: meta(namespace, "g", age+9), Spec: gatewayv1.GRPCRouteSpec{
			CommonRouteSpec: parents, Hostnames: hosts(), Rules: []gatewayv1.GRPCRouteRule{{BackendRefs: []gatewayv1.GRPCBackendRef{{BackendRef: backend}}}}}})
	case 1:
		into.TLSRoutes = append(into.TLSRoutes, &gatewayv1.TLSRoute{ObjectMeta: meta(namespace, "t", age+9), Spec: gatewayv1.TLSRouteSpec{
			CommonRouteSpec: parents, Hostnames: hosts(), Rules: []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{backend}}}}})
	case 2:
		into.BackendTLSPolicies = append(into.BackendTLSPolicies, &gatewayv1.BackendTLSPolicy{
			ObjectMeta: meta(namespace, "p", age+9), Spec: gatewayv1.BackendTLSPolicySpec{
				TargetRefs: []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: "s"}}},
				Validation: gatewayv1.BackendTLSPolicyValidation{Hostname: "s"},
			}})
	}
}

func drawListenerSets(t *rapid.T, into *model.Objects, namespace string, age int) {
	of, kind := gatewayv1.Namespace("a"), gatewayv1.Kind("ListenerSet")
	for i := range rapid.IntRange(0, 2).Draw(t, "listener sets") {
		found := &gatewayv1.ListenerSet{ObjectMeta: meta(namespace, fmt.Sprint("l", i), age+i)}
		found.Spec.ParentRef = gatewayv1.ParentGatewayReference{Name: "edge", Namespace: &of}
		host := gatewayv1.Hostname(rapid.SampledFrom(worldHosts[:7]).Draw(t, "hostname"))
		entry := gatewayv1.ListenerEntry{Name: "one", Port: 80, Protocol: gatewayv1.HTTPProtocolType, Hostname: &host}
		switch rapid.IntRange(0, 2).Draw(t, "listener") {
		case 0:
			mode := gatewayv1.TLSModePassthrough
			entry.Port, entry.Protocol, entry.TLS = 443, gatewayv1.TLSProtocolType, &gatewayv1.ListenerTLSConfig{Mode: &mode}
		case 1:
			entry.Port, entry.Protocol = 443, gatewayv1.HTTPSProtocolType
			entry.TLS = &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "tls"}}}
		}
		found.Spec.Listeners = []gatewayv1.ListenerEntry{entry}
		into.ListenerSets = append(into.ListenerSets, found)
		port := gatewayv1.PortNumber(80)
		backend := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{Name: "s", Port: &port}}
		parents := gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Kind: &kind, Name: gatewayv1.ObjectName(found.Name)}}}
		if entry.Protocol == gatewayv1.TLSProtocolType {
			into.TLSRoutes = append(into.TLSRoutes, &gatewayv1.TLSRoute{ObjectMeta: meta(namespace, fmt.Sprint("lt", i), age+i), Spec: gatewayv1.TLSRouteSpec{
				CommonRouteSpec: parents, Hostnames: []gatewayv1.Hostname{host}, Rules: []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{backend}}}}})
			continue
		}
		into.HTTPRoutes = append(into.HTTPRoutes, &gatewayv1.HTTPRoute{ObjectMeta: meta(namespace, fmt.Sprint("lr", i), age+i), Spec: gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: parents, Rules: []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: backend}}}}}})
	}
}
