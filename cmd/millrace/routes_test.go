// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"strings"
	"testing"
)

var routed = map[string]string{
	"ingressclasses": `{"metadata":{"name":"millrace"},"spec":{"controller":"millrace.io/ingress"}}`,
	"ingresses": `{"metadata":{"namespace":"default","name":"site"},"spec":{"ingressClassName":"millrace",
		"tls":[{"hosts":["a.example.com"],"secretName":"site"}],
		"rules":[{"host":"a.example.com","http":{"paths":[{"path":"/x","pathType":"Prefix",
			"backend":{"service":{"name":"web","port":{"number":80}}}}]}}]}}`,
	"services": `{"metadata":{"namespace":"default","name":"web"},"spec":{"ports":[{"name":"http","port":80}]}},
		{"metadata":{"namespace":"millrace-system","name":"ingressclass-millrace","annotations":{"millrace.io/proxy-of":"IngressClass//millrace"}},
			"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"},{"ip":"2001:db8:cafe::1"}]}}},
		{"metadata":{"namespace":"shop","name":"edge-millrace","annotations":{"millrace.io/proxy-of":"Gateway/shop/edge"}},
			"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.2"}]}}}`,
	"endpointslices": `{"metadata":{"namespace":"default","name":"web-1","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
		"ports":[{"name":"http","port":8080}],"endpoints":[{"addresses":["198.18.1.1"]},{"addresses":["198.18.2.1"]}]}`,
	"gatewayclasses": `{"metadata":{"name":"millrace"},"spec":{"controllerName":"millrace.io/gateway"}}`,
	"gateways": `{"metadata":{"namespace":"shop","name":"edge"},"spec":{"gatewayClassName":"millrace",
		"listeners":[{"name":"http","port":80,"protocol":"HTTP"}]}}`,
	"httproutes": `{"metadata":{"namespace":"shop","name":"all"},"spec":{"parentRefs":[{"name":"edge"}],
		"rules":[{"backendRefs":[{"name":"missing","port":80}]}]}}`,
	"namespaces": "",
}

var routedKinds = map[string]string{
	"ingressclasses": "IngressClassList", "ingresses": "IngressList", "services": "ServiceList", "endpointslices": "EndpointSliceList",
	"gatewayclasses": "GatewayClassList", "gateways": "GatewayList", "httproutes": "HTTPRouteList", "namespaces": "NamespaceList",
}

// refusingCluster fails the test if Secrets are requested.
func refusingCluster(t *testing.T, items map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := path.Base(r.URL.Path)
		if strings.Contains(r.URL.Path, "secrets") {
			t.Errorf("requested %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		if deployment := items["deployments/"+kind]; deployment != "" {
			fmt.Fprint(w, deployment)
			return
		}
		list, known := items[kind]
		if !known {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"may not"}`)
			return
		}
		version := "v1"
		if parts := strings.Split(r.URL.Path, "/"); parts[1] == "apis" {
			version = parts[2] + "/" + parts[3]
		}
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":{},"items":[%s]}`, version, routedKinds[kind], list)
	}))
	t.Cleanup(server.Close)
	return kubeconfigOf(t, server.URL)
}

func TestRoutes(t *testing.T) {
	kubeconfig := " --kubeconfig " + refusingCluster(t, routed)
	for line, want := range map[string]struct{ has, lacks []string }{
		"routes": {[]string{
			"IngressClass millrace: 203.0.113.1, 2001:db8:cafe::1", "80/HTTP,443/HTTPS  a.example.com  /x", "default/web:80",
			"Gateway shop/edge: 203.0.113.2", "there is no Service shop/missing", "Left out: BackendTLSPolicies, GRPCRoutes, ListenerSets, ReferenceGrants, TCPRoutes, TLSRoutes",
		}, nil},
		"routes a.example.com": {[]string{"Ingress default/site", "Gateway shop/edge"}, nil},
		"routes b.example.com": {[]string{"Gateway shop/edge"}, []string{"Ingress default/site"}},
		"routes -n default":    {[]string{"Ingress default/site"}, []string{"shop"}},
		"routes -o json":       {[]string{`"198.18.1.1:8080"`, `"reason": "BackendNotFound"`}, nil},
		"routes -o wide":       {[]string{"198.18.1.1:8080,198.18.2.1:8080"}, nil},
	} {
		stdout, stderr, code := runWith(t, both(), line+kubeconfig)
		if code != exitOK || stderr != "" {
			t.Fatalf("%s: exit code %d: %s", line, code, stderr)
		}
		for _, text := range want.has {
			if !strings.Contains(stdout, text) {
				t.Errorf("%s: no %q in\n%s", line, text, stdout)
			}
		}
		for _, text := range want.lacks {
			if strings.Contains(stdout, text) {
				t.Errorf("%s: %q in\n%s", line, text, stdout)
			}
		}
	}
	if _, stderr, code := runWith(t, both(), "routes no..host"+kubeconfig); code != exitError || !strings.Contains(stderr, "is not a hostname") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestRoutesHaveTheRoomOfTheCluster checks that objects beyond the gateway's limits are rejected.
func TestRoutesHaveTheRoomOfTheCluster(t *testing.T) {
	const small = `"--max-namespace-configuration=100"`
	for arguments, want := range map[string]string{
		small: "100 bytes", `"--leader-elect","--max-namespace-configuration","90"`: "90 bytes", `"--max-proxy-configuration=50"`: "more than 50;",
		`"--leader-elect"`: "", `"--max-namespace-configuration=much"`: "",
	} {
		items := maps.Clone(routed)
		items["deployments/millrace-gateway"] = fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment",
			"metadata":{"namespace":"millrace-system","name":"millrace-gateway"},
			"spec":{"template":{"spec":{"containers":[{"name":"gateway","args":[%s]}]}}}}`, arguments)
		stdout, stderr, code := runWith(t, both(), "routes --kubeconfig "+refusingCluster(t, items))
		if code != exitOK || stderr != "" {
			t.Fatalf("%s: exit code %d: %s", arguments, code, stderr)
		}
		if text := strings.Join(strings.Fields(stdout), " "); strings.Contains(text, "LimitExceeded") != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%s: want %q in\n%s", arguments, want, stdout)
		} else if strings.Contains(text, "default limits") != strings.Contains(arguments, "much") {
			t.Errorf("%s: the remark in\n%s", arguments, stdout)
		}
	}
	stdout, _, _ := runWith(t, both(), "routes --kubeconfig "+refusingCluster(t, routed))
	if text := strings.Join(strings.Fields(stdout), " "); !strings.Contains(text, "you may not read the Deployment millrace-system/millrace-gateway") {
		t.Errorf("no remark in\n%s", stdout)
	}
}

// TestTraceURL tests the part of a trace that needs no agents; querying agents is forbidden.
func TestTraceURL(t *testing.T) {
	both := maps.Clone(routed)
	both["ingresses"] += `,{"metadata":{"namespace":"default","name":"both"},"spec":{"ingressClassName":"millrace",
		"rules":[{"host":"b.example.com","http":{"paths":[{"path":"/","pathType":"Prefix",
			"backend":{"service":{"name":"web","port":{"number":80}}}}]}}]}}`
	kubeconfig := " --kubeconfig " + refusingCluster(t, both)
	for line, test := range map[string]struct {
		code int
		has  []string
	}{
		"https://a.example.com/x/y --from 203.0.113.7": {exitOK, []string{
			"listener     443/HTTPS for a.example.com", "route        rule 0/0 of Ingress default/site, for a.example.com, match /x",
			"backend      Service default/web, port 80: 198.18.1.1:8080, 198.18.2.1:8080", "sent to one of these endpoints",
		}},
		"https://a.example.com/other":                               {exitDropped, []string{"answered with 404 Not Found"}},
		"http://b.example.com/ --vip 203.0.113.1":                   {exitOK, []string{"IngressClass millrace"}},
		"http://b.example.com/ --from 2001:db8::7":                  {exitOK, []string{"IngressClass millrace"}},
		"http://203.0.113.2/":                                       {exitDropped, []string{"Gateway shop/edge", "(invalid): answered with 500", "answered with 500"}},
		"http://b.example.com/":                                     {exitError, []string{"several VIPs: b.example.com at 203.0.113.2 (Gateway shop/edge), 203.0.113.1"}},
		"https://a.example.com:8443/":                               {exitError, []string{"no proxy with a VIP of that family listens at port 8443"}},
		"https://a.example.com/ --vip 203.0.113.9":                  {exitError, []string{"no proxy listens at 203.0.113.9:443"}},
		"https://a.example.com/ --from 203.0.113.7 --vip ::1":       {exitError, []string{"both must be IPv4 or both IPv6"}},
		"https://a.example.com/ --from nobody":                      {exitError, []string{"--from=nobody"}},
		"https://a.example.com/ -H Host:b":                          {exitError, []string{"specify the host in the URL"}},
		"https://a.example.com/ -H broken":                          {exitError, []string{"--header"}},
		"https://a.example.com/ --proto udp":                        {exitError, []string{"remove --ack"}},
		"ftp://a.example.com/":                                      {exitError, []string{"or a URL such as"}},
		"198.51.100.1:1 203.0.113.1:80 --vip 203.0.113.1":           {exitError, []string{"--vip requires a URL"}},
		"https://a.example.com:0/":                                  {exitError, []string{"not a port"}},
		"https://a.example.com/x --from 203.0.113.7:1 -o json":      {exitOK, []string{`"endpoints": [`, `"hostname": "a.example.com"`}},
		"https://a.example.com/x --method post -H X-Host:b -o json": {exitOK, []string{`"listener"`}},
	} {
		stdout, stderr, code := runWith(t, nil, "trace "+line+kubeconfig)
		if code != test.code {
			t.Errorf("%s: exit code %d: %s", line, code, stderr)
		}
		if code != exitError && !strings.Contains(stderr, "the packet is not traced") {
			t.Errorf("%s: no warning that the packet is not traced: %s", line, stderr)
		}
		for _, text := range test.has {
			if !strings.Contains(stdout+stderr, text) {
				t.Errorf("%s: no %q in\n%s%s", line, text, stdout, stderr)
			}
		}
		if strings.HasSuffix(line, "json") {
			var got tracePath
			if err := json.NewDecoder(bytes.NewReader([]byte(stdout))).Decode(&got); err != nil || got.Request == nil {
				t.Errorf("%s: %v, %+v", line, err, got)
			}
		}
	}
}

func TestSourceOfURL(t *testing.T) {
	for from, want := range map[string]string{
		"": "192.0.2.1:40000", "203.0.113.7": "203.0.113.7:40000", "203.0.113.7:5": "203.0.113.7:5", "[2001:db8::7]:5": "[2001:db8::7]:5",
		"2001:db8::7": "[2001:db8::7]:40000", "::ffff:203.0.113.7": "203.0.113.7:40000",
	} {
		if have, err := (&urlFlags{from: from}).source(netip.Addr{}); err != nil || have.String() != want {
			t.Errorf("%q: %s, %v; want %s", from, have, err, want)
		}
	}
	if have, err := new(urlFlags).source(netip.MustParseAddr("2001:db8:cafe::1")); err != nil || have != netip.AddrPortFrom(someIPv6, somePort) {
		t.Errorf("to IPv6: %s, %v", have, err)
	}
}
