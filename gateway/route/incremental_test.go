// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// world contains templates of objects. Each edit chooses alternatives between brackets at random. Most
// references resolve, but not all.
var world = []string{
	`{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: [a|b]}}}`,
	`{apiVersion: v1, kind: Namespace, metadata: {name: pay, labels: {team: [a|b]}}}`,
	`{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {ports: [<{name: http, port: 80}|{name: web, port: 80, appProtocol: kubernetes.io/h2c}|{port: 81}>]}}`,
	`{apiVersion: v1, kind: Service, metadata: {namespace: pay, name: web}, spec: {ports: [<{name: http, port: 80}|{name: http, port: 80, appProtocol: https}|{name: dns, port: 53, protocol: UDP}>]}}`,
	`{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {namespace: shop, name: tls, annotations: {test/certificate: "<a.example|*.example|a.example,b.example>", test/key: "<|rsa|other>"}}}`,
	`{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {namespace: pay, name: tls, annotations: {test/certificate: "<a.example|*.example>"}}}`,
	`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: settings}, data: {trustedHops: "<1|2|x>", sslRedirect: "<true|false>", annotations: <ingress-nginx|ingress-nginx|none|x>}}`,
	`{apiVersion: v1, kind: Secret, type: Opaque, metadata: {namespace: shop, name: users}, data: {auth: <YTp7U0hBfUVmYXRqc1VxS1lTcnF2MThPMUZsQTNoY0lIST0=|Yjp7U0hBfUVmYXRqc1VxS1lTcnF2MThPMUZsQTNoY0lIST0=|Yw==>}}`,
	`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: headers}, data: {x-a: <b|c>}}`,
	`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: ca, annotations: {test/certificate: "<one|two>"}}}`,
	`{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: millrace, annotations: {ingressclass.kubernetes.io/is-default-class: "<true|false>"}}, spec: {controller: <millrace.io/ingress|other>, parameters: {kind: ConfigMap, scope: Namespace, namespace: shop, name: settings}}}`,
	ingressTemplate("one"), ingressTemplate("two"), ingressTemplate("three"),
	`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: millrace}, spec: {controllerName: <millrace.io/gateway|millrace.io/gateway|example.com/other>}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {namespace: shop, name: edge}, spec: {gatewayClassName: millrace, allowedListeners: {namespaces: {from: <All|Same|None>}}, listeners: [
	  {name: http, port: <80|81>, protocol: HTTP, allowedRoutes: {namespaces: <{from: All}|{from: Same}|{from: Selector, selector: {matchLabels: {team: a}}}>}},
	  {name: https, port: 443, protocol: HTTPS, hostname: "<a.example|*.example>", tls: {certificateRefs: [{name: tls}, {name: tls, namespace: <shop|pay>}]}},
	  {name: tcp, port: 5432, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}, {name: udp, port: 53, protocol: UDP}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {namespace: <shop|shop>, name: more}, spec: {parentRef: {name: edge}, listeners: [{name: more, port: <80|443|8443>, protocol: HTTPS, hostname: <a.example|b.example>, tls: {certificateRefs: [{name: tls}]}}]}}`,
	httpTemplate("shop", "one"), httpTemplate("pay", "two"), httpTemplate("shop", "three"),
	`{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {namespace: shop, name: grpc}, spec: {parentRefs: [{name: edge}], hostnames: [<a.example|c.example>], rules: [{matches: [{method: {service: <s|t>}}], backendRefs: [{name: web, port: 80}]}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {namespace: shop, name: tls}, spec: {parentRefs: [{name: edge, sectionName: <https|http>}], hostnames: [a.example], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {namespace: pay, name: tcp}, spec: {parentRefs: [{name: edge, namespace: shop, sectionName: tcp}], rules: [{backendRefs: [{name: web, namespace: <pay|shop>, port: 80, weight: <1|0|7>}]}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: UDPRoute, metadata: {namespace: shop, name: udp}, spec: {parentRefs: [{name: edge, sectionName: udp}], rules: [{backendRefs: [{name: web, namespace: pay, port: 53}]}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {namespace: pay, name: grant}, spec: {from: [{group: gateway.networking.k8s.io, kind: <HTTPRoute|Gateway|UDPRoute>, namespace: shop}, {group: networking.k8s.io, kind: <Ingress|Other>, namespace: shop}], to: [{group: "", kind: <Service|Secret>}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {namespace: shop, name: grant}, spec: {from: [{group: gateway.networking.k8s.io, kind: <TCPRoute|HTTPRoute>, namespace: pay}], to: [{group: "", kind: Service, name: <web|other>}]}}`,
	policyTemplate("older"), policyTemplate("younger"),
}

func ingressTemplate(name string) string {
	return `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: shop, name: ` + name + `,
	  annotations: {millrace.io/ssl-redirect: "<true|false|x>", millrace.io/dedicated-vip: "<false|false|true>",
	  <nginx.ingress.kubernetes.io/auth-type: basic, nginx.ingress.kubernetes.io/auth-secret: users,|nginx.ingress.kubernetes.io/custom-headers: headers,|nginx.ingress.kubernetes.io/canary: "true", nginx.ingress.kubernetes.io/canary-weight: "10",|nginx.ingress.kubernetes.io/server-alias: c.example, nginx.ingress.kubernetes.io/app-root: /x,|nginx.ingress.kubernetes.io/rewrite-target: /$1, nginx.ingress.kubernetes.io/whitelist-source-range: 198.51.100.1,|nginx.ingress.kubernetes.io/ssl-passthrough: "true",|nginx.ingress.kubernetes.io/auth-url: x,|nginx.ingress.kubernetes.io/auth-url: "http://$host/x/y/z",|nginx.ingress.kubernetes.io/auth-url: "http://web.shop.svc/a",|nginx.ingress.kubernetes.io/auth-url: "http://web.pay.svc.cluster.local/a",||>}}, spec: {
	  ingressClassName: <millrace|millrace|other>, <defaultBackend: {service: {name: web, port: {number: 80}}}, |>
	  tls: [{hosts: <[a.example]|[b.example, a.example]|["*.example"]|[]>, secretName: <tls|tls|missing>}],
	  rules: [{host: "<a.example|b.example|*.example||A.example.>", http: {paths: [{path: <|/|/x|/x/y>, pathType: <Prefix|Exact|ImplementationSpecific>, backend: {service: {name: <web|web|missing>, port: <{number: 80}|{name: http}>}}}]}}]}}`
}

func httpTemplate(namespace, name string) string {
	return `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {namespace: ` + namespace + `, name: ` + name + `}, spec: {
	  parentRefs: [<{name: edge, namespace: shop}|{name: edge, namespace: shop, sectionName: http}|{kind: ListenerSet, name: more}>], hostnames: <[a.example]|["*.example", b.example]|[]>,
	  rules: [{matches: [{path: {type: <PathPrefix|Exact|RegularExpression>, value: /<|x|y.*>}, <method: GET, |>headers: <[{name: a, value: b}]|[]>}],
	    filters: <[]|[{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x, value: y}]}}]|[{type: ExtensionRef}]|[{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: web, port: 80}}}]|[{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: web, namespace: pay, port: 80}}}]>, <timeouts: {request: 5s}, |>
	    backendRefs: [{name: web, namespace: <shop|pay>, port: 80, weight: <1|2>}]}]}}`
}

func policyTemplate(name string) string {
	return `{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {namespace: <shop|shop>, name: ` + name + `}, spec: {
	  targetRefs: [{group: "", kind: Service, name: <web|other><, sectionName: http|>}], validation: {hostname: <b.example|c.example>,
	  caCertificateRefs: [{group: "", kind: ConfigMap, name: <ca|missing>}]}}}`
}

// draw chooses the alternatives of a template at random.
func draw(t *rapid.T, template string) string {
	// YAML lists keep their brackets: alternatives are written as < > or [a|b].
	template = strings.ReplaceAll(template, "[a|b]", "<a|b>")
	var text strings.Builder
	for {
		before, rest, found := strings.Cut(template, "<")
		text.WriteString(before)
		if !found {
			return text.String()
		}
		alternatives, after, _ := strings.Cut(rest, ">")
		text.WriteString(rapid.SampledFrom(strings.Split(alternatives, "|")).Draw(t, "alternative"))
		template = after
	}
}

type edits struct {
	live    map[int]*model.Objects
	created map[int]time.Time
	version int
}

func (e *edits) edit(t *rapid.T, at int) {
	e.version++
	if _, lives := e.live[at]; lives && rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		delete(e.live, at)
		delete(e.created, at)
		return
	}
	text := draw(t, world[at])
	parsed, err := routetest.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if _, known := e.created[at]; !known {
		e.created[at] = time.Unix(int64(1_700_000_000+rapid.IntRange(0, 5).Draw(t, "created")), 0)
	}
	for _, object := range objectsOf(parsed) {
		object.SetCreationTimestamp(metav1.NewTime(e.created[at]))
		object.SetGeneration(int64(e.version))
		object.SetUID("of-" + object.GetUID())
		object.SetResourceVersion(fmt.Sprint(e.version))
	}
	e.live[at] = parsed
}

func objectsOf(objects *model.Objects) []metav1.Object {
	var found []metav1.Object
	fields := reflect.ValueOf(objects).Elem()
	for i := range fields.NumField() {
		for j := 0; fields.Field(i).Kind() == reflect.Slice && j < fields.Field(i).Len(); j++ {
			found = append(found, fields.Field(i).Index(j).Interface().(metav1.Object))
		}
	}
	return found
}

func (e *edits) objects() *model.Objects {
	all := &model.Objects{}
	into := reflect.ValueOf(all).Elem()
	for at := range world {
		if e.live[at] == nil {
			continue
		}
		from := reflect.ValueOf(e.live[at]).Elem()
		for i := range into.NumField() {
			if into.Field(i).Kind() == reflect.Slice {
				into.Field(i).Set(reflect.AppendSlice(into.Field(i), from.Field(i)))
			}
		}
	}
	return all
}

// TestCompilerFollows checks that after any sequence of edits, a Compiler returns the result of Compile,
// unless it retains previous versions, and reuses the pointers of equal resources.
func TestCompilerFollows(t *testing.T) {
	seen, compared := map[string]bool{}, 0
	rapid.Check(t, func(t *rapid.T) {
		e := &edits{live: map[int]*model.Objects{}, created: map[int]time.Time{}}
		for at := range world {
			e.edit(t, at)
		}
		compiler := &route.Compiler{}
		known := map[string]*resource.Resource{}
		for range rapid.IntRange(1, 15).Draw(t, "edits") {
			for range rapid.IntRange(0, 3).Draw(t, "at once") {
				e.edit(t, rapid.IntRange(0, len(world)-1).Draw(t, "object"))
			}
			objects := e.objects()
			got := compiler.Compile(objects, model.DefaultSettings())
			want := route.Compile(objects, model.DefaultSettings())
			if len(got.Retained) > 0 {
				want = got
			} else {
				compared++
			}
			if got, want := dump(got), dump(want); got != want {
				t.Fatalf("incremental compilation returns a different result:\n%s", cmp.Diff(want, got))
			}
			current := map[string]*resource.Resource{}
			for _, proxy := range got.Proxies {
				if !slices.IsSortedFunc(proxy.Resources, func(a, b *resource.Resource) int { return strings.Compare(a.Name, b.Name) }) {
					t.Fatal("the resources are not sorted")
				}
				for _, found := range proxy.Resources {
					name := fmt.Sprint(proxy.Owner, " ", found.Name)
					if before := known[name]; before != nil && before != found && proto.Equal(before, found) {
						t.Fatalf("%s did not change, but its pointer did", name)
					}
					current[name] = found
					kind, _, _ := strings.Cut(found.Name, "/")
					seen[proxy.Owner.Kind+" "+kind] = true
				}
			}
			known = current
		}
	})
	if compared < 50 {
		t.Errorf("only %d results without retained objects were compared", compared)
	}
	for _, kind := range []string{
		"IngressClass group", "IngressClass users", "IngressClass listener", "IngressClass certificate", "Ingress group",
		"Gateway group", "Gateway listener", "Gateway certificate", "Gateway backend", "Gateway authority",
	} {
		if !seen[kind] {
			t.Errorf("no object was compiled to %s: the coverage is too low", kind)
		}
	}
}
