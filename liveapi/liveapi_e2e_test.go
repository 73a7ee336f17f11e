// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package liveapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/api/relay"
)

const (
	webVIP  = "198.51.100.1"
	mailVIP = "198.51.100.2"
)

// TestLive sends requests through a real API server to the program, with simulated agents on three nodes.
func TestLive(t *testing.T) {
	e := newEnvironment(t)
	a, b, c := e.node(t, "node-a", 1), e.node(t, "node-b", 2), e.node(t, "node-c", 3)
	e.service(t, "shop", "web", webVIP, "node-a", "node-b", "node-b")
	e.service(t, "office", "mail", mailVIP)
	web := live.Traffic{
		Frontends: []live.FrontendTraffic{{
			FrontendName: console.FrontendName{VIP: netip.MustParseAddr(webVIP), Port: 80, Protocol: "TCP", Service: "shop/web"},
			Packets:      50000, Bytes: 5e6, Connections: 100, Drops: map[string]uint64{"NoEndpoint": 10},
		}},
		Drops: map[string]uint64{"NoEndpoint": 10, "NoFrontend": 5}, Uplinks: []console.Uplink{{Interface: "eth0", Redirect: 10}},
	}
	for _, each := range []*agent{a, b, c} {
		each.change(func(a *agent) {
			a.state.VIPs = []console.VIPGroup{
				{Peers: []string{"rack1"}, Addresses: []netip.Addr{netip.MustParseAddr(webVIP)}},
				{Reason: "NoEndpoint", Message: "no endpoint is ready", Addresses: []netip.Addr{netip.MustParseAddr(mailVIP)}},
			}
			a.state.Sessions = []console.BGPPeer{{Peer: "rack1", Address: netip.MustParseAddr("192.0.2.1"), State: "Established", RoutesSent: 1}}
		})
	}
	a.change(func(a *agent) { a.traffic = web })
	c.change(func(a *agent) { a.traffic = web })
	address, _ := e.run(t)

	t.Run("traffic", func(t *testing.T) { testTraffic(t, e) })
	t.Run("announcements", func(t *testing.T) { testAnnouncements(t, e) })
	t.Run("sessions", func(t *testing.T) { testSessions(t, e) })
	t.Run("flows", func(t *testing.T) { testFlows(t, e) })
	t.Run("drops", func(t *testing.T) { testDrops(t, e) })
	t.Run("watch", func(t *testing.T) { testWatch(t, e) })
	t.Run("schemas", func(t *testing.T) { testSchemas(t, e) })
	t.Run("tenants", func(t *testing.T) { testTenants(t, e) })
	t.Run("command", func(t *testing.T) { testCommand(t, e) })
	t.Run("relay", func(t *testing.T) { testRelay(t, e) })
	t.Run("strangers", func(t *testing.T) { testStrangers(t, address) })
	t.Run("rotation", func(t *testing.T) { testRotation(t, e) })
	t.Run("partial", func(t *testing.T) { testPartial(t, e) })
	t.Run("namespaces", func(t *testing.T) { testNamespaces(t, e) })
}

// rows returns the lines of `kubectl get` with single spaces between columns.
func (e *environment) rows(t *testing.T, arguments ...string) []string {
	t.Helper()
	output, err := e.server.Kubectl(t.Context(), append([]string{"get"}, arguments...)...)
	must(t, err)
	var rows []string
	for line := range strings.Lines(string(output)) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	return rows
}

func testTraffic(t *testing.T, e *environment) {
	eventually(t, func(ctx context.Context) error {
		traffic := &livev1alpha1.ServiceTraffic{}
		if err := e.client.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "web"}, traffic); err != nil {
			return err
		}
		want := livev1alpha1.TrafficRates{Connections: 40, Packets: 20000, Bits: 16e6, Drops: 4}
		if traffic.Rates != want || traffic.Window.Duration != 10*time.Second || traffic.Drops["NoEndpoint"] != 4 {
			return fmt.Errorf("the traffic is %+v, want %+v", traffic, want)
		}
		if want := (livev1alpha1.FrontendTraffic{VIP: webVIP, Port: 80, Protocol: "TCP", Rates: want}); len(traffic.Frontends) != 1 || traffic.Frontends[0] != want {
			return fmt.Errorf("the frontends are %+v, want %+v", traffic.Frontends, want)
		}
		if traffic.Timestamp == nil || time.Since(traffic.Timestamp.Time) > 10*time.Second {
			return fmt.Errorf("the counters are of %v", traffic.Timestamp)
		}
		return nil
	})
	want := []string{
		"NAMESPACE NAME CONN/S PACKETS/S BITS/S DROPS/S ENDPOINTS NODES COUNTED",
		"office mail 0 0 0 0 0/0 0/3 *",
		"shop web 40 20k 16M 4 2/3 3/3 *",
	}
	rows := e.rows(t, "servicetraffic", "-A")
	for i := range rows {
		if i > 0 {
			rows[i] = rows[i][:strings.LastIndex(rows[i], " ")] + " *"
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
	if wide := e.rows(t, "servicetraffic", "-n", "shop", "-o", "wide", "-l", "app=web"); len(wide) != 2 || !strings.HasSuffix(wide[1], " 10s NoEndpoint=4") {
		t.Errorf("-o wide prints %q", wide)
	}
	if none := e.rows(t, "servicetraffic", "-n", "shop", "-l", "app=mail"); len(none) != 0 {
		t.Errorf("with another label there is %q", none)
	}
	// Drops that belong to no Service require access to all namespaces.
	for namespace, want := range map[string]bool{"": true, "shop": false} {
		list := &livev1alpha1.ServiceTrafficList{}
		must(t, e.client.List(t.Context(), list, client.InNamespace(namespace)))
		warned := list.Drops["NoFrontend"] == 2 && slices.Equal(list.Uplinks, []livev1alpha1.UplinkDrops{
			{Node: "node-a", Interface: "eth0", Redirect: 2}, {Node: "node-c", Interface: "eth0", Redirect: 2},
		})
		if warned != want || !want && len(list.Drops)+len(list.Uplinks) > 0 || list.AnsweredNodes != 3 {
			t.Errorf("a list of namespace %q has drops %v and uplinks %+v of %d nodes", namespace, list.Drops, list.Uplinks, list.AnsweredNodes)
		}
	}
	absent := &livev1alpha1.ServiceTraffic{}
	if err := e.client.Get(t.Context(), client.ObjectKey{Namespace: "office", Name: "web"}, absent); !apierrors.IsNotFound(err) {
		t.Errorf("a Service that does not exist returns %v", err)
	}
}

func testAnnouncements(t *testing.T, e *environment) {
	want := []string{
		"NAME ADDRESS NODES PEERS WITHHELD",
		"198.51.100.1 198.51.100.1 3/3 rack1 <none>",
		"198.51.100.2 198.51.100.2 0/3 <none> NoEndpoint=3",
	}
	if rows := e.rows(t, "vipannouncements"); !slices.Equal(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
	list := &livev1alpha1.VIPAnnouncementList{}
	must(t, e.client.List(t.Context(), list))
	if nodes := []string{"node-a", "node-b", "node-c"}; !slices.Equal(list.Answered, nodes) || list.Silent != nil ||
		list.Items[0].Announced[0].NodeRanges != "0-2" || list.Items[1].Withheld[0].NodeRanges != "0-2" {
		t.Errorf("the list is of %v without %v: %+v", list.Answered, list.Silent, list.Items)
	}
	announcement := &livev1alpha1.VIPAnnouncement{}
	must(t, e.client.Get(t.Context(), client.ObjectKey{Name: webVIP}, announcement))
	if groups := announcement.Announced; len(groups) != 1 || !slices.Equal(groups[0].Nodes, []string{"node-a", "node-b", "node-c"}) || groups[0].NodeRanges != "" {
		t.Errorf("%s is announced by %+v", webVIP, groups)
	}
}

func testSessions(t *testing.T, e *environment) {
	rows := e.rows(t, "bgpsessions")
	if len(rows) != 4 || rows[1] != "node-a.rack1 node-a rack1 192.0.2.1 Established <none> 1 <none>" {
		t.Errorf("got %q", rows)
	}
	session := &livev1alpha1.BGPSession{}
	must(t, e.client.Get(t.Context(), client.ObjectKey{Name: "node-b.rack1"}, session))
	if session.Node != "node-b" || session.State != "Established" {
		t.Errorf("got %+v", session)
	}
}

func testFlows(t *testing.T, e *environment) {
	seen := time.Now().Add(-time.Minute)
	for i, name := range []string{"node-a", "node-b"} {
		e.agents[name].change(func(a *agent) {
			a.flows = []live.Flow{{
				Client: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), uint16(40000+i)), VIP: netip.MustParseAddrPort(webVIP + ":80"),
				Protocol: "TCP", Endpoint: netip.MustParseAddrPort("10.0.0.1:8080"), LastSeen: seen.Add(time.Duration(i) * time.Second), State: live.FlowEstablished,
			}}
		})
	}
	rows := e.rows(t, "flows", "-n", "shop", "--field-selector", "service=web,client=203.0.113.0/24")
	if len(rows) != 3 || !strings.HasPrefix(rows[1], "203.0.113.9:40001 198.51.100.1:80 TCP 10.0.0.1:8080 node-b Established ") {
		t.Errorf("got %q", rows)
	}
	// Endpoints that are not ready can still have flows.
	for name, want := range map[string]int{"node-a": 1, "node-b": 1, "node-c": 0} {
		requests := e.agents[name].requestsSince()
		if len(requests) != want || want > 0 && requests[0] != "/v1/flows?client=203.0.113.0%2F24&limit=1000&service=shop%2Fweb" {
			t.Errorf("%s received %q", name, requests)
		}
	}
	flows := &livev1alpha1.FlowList{}
	e.warnings.Take()
	must(t, e.client.List(t.Context(), flows, client.InNamespace("shop"), client.MatchingLabels{livev1alpha1.LabelService: "web"}, client.Limit(1)))
	if len(flows.Items) != 1 || !strings.Contains(e.warnings.Take(), "there are more flows than these 1: ") {
		t.Errorf("with a limit of 1 there are %d flows", len(flows.Items))
	}
	for selector, want := range map[string]string{
		"":                            "flows are listed for one Service: specify its namespace, and --field-selector service=NAME",
		"service=absent":              `services "absent" not found`,
		"service=web,client=anywhere": "client=anywhere is neither an address nor a prefix",
		"service!=web":                "service only supports the operator =",
		"colour=red":                  `"colour" is not a supported field: must be service or client`,
	} {
		_, err := e.server.Kubectl(t.Context(), "get", "flows", "-n", "shop", "--field-selector", selector)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", selector, err, want)
		}
	}
}

func testDrops(t *testing.T, e *environment) {
	e.agents["node-c"].change(func(a *agent) {
		a.drops = live.Drops{Truncated: true, Items: []console.Drop{{
			Time: time.Now().Add(-time.Minute), Node: "node-c", Reason: "NoEndpoint", Source: netip.MustParseAddrPort("203.0.113.9:40000"),
			Destination: netip.MustParseAddrPort(webVIP + ":80"), Protocol: "TCP", Service: "shop/web", Interface: "eth0", Length: 60,
		}}}
	})
	for _, agent := range e.agents {
		agent.requestsSince()
	}
	rows := e.rows(t, "drops", "-n", "shop", "--field-selector", "service=web", "-o", "wide")
	if len(rows) != 2 || !strings.Contains(rows[1], " NoEndpoint 203.0.113.9:40000 198.51.100.1:80 TCP node-c eth0 60 ") {
		t.Errorf("got %q", rows)
	}
	for name, agent := range e.agents {
		if requests := agent.requestsSince(); len(requests) != 1 {
			t.Errorf("%s received %q", name, requests)
		}
	}
}

// testWatch checks that a change of an agent's state sends an event, and that nothing else does.
func testWatch(t *testing.T, e *environment) {
	watching, err := client.NewWithWatch(e.server.Admin(), client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	list := &livev1alpha1.VIPAnnouncementList{}
	must(t, watching.List(t.Context(), list))
	// The resource version of the watch is two seconds later, so that it does not include the changes of the
	// agents.
	millis, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	must(t, err)
	events, err := watching.Watch(t.Context(), &livev1alpha1.VIPAnnouncementList{}, &client.ListOptions{Raw: &metav1.ListOptions{
		ResourceVersion: strconv.FormatInt(millis+2000, 10),
	}})
	must(t, err)
	defer events.Stop()
	// A change before the watch started sends no event, so the test repeats the change.
	vips, announcing := e.agents["node-a"].state.VIPs, map[bool]int32{true: 3, false: 2}
	deadline, whole := time.After(waitTimeout), true
	for warned := false; !warned; {
		whole = !whole
		e.agents["node-a"].change(func(a *agent) {
			if a.state.VIPs = vips[1:]; whole {
				a.state.VIPs = vips
			}
		})
		select {
		case event := <-events.ResultChan():
			warned = true
			changed, ok := event.Object.(*livev1alpha1.VIPAnnouncement)
			if event.Type != watch.Modified || !ok || changed.Name != webVIP || changed.Nodes.Announcing != announcing[whole] {
				t.Errorf("got %s %+v", event.Type, event.Object)
			}
		case <-time.After(3 * time.Second):
		case <-deadline:
			t.Fatal("no event")
		}
	}
	e.agents["node-a"].change(func(a *agent) { a.state.VIPs = vips[1:] })
	initial := true
	all, err := watching.Watch(t.Context(), &livev1alpha1.ServiceTrafficList{}, &client.ListOptions{Raw: &metav1.ListOptions{
		SendInitialEvents: &initial, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	}})
	must(t, err)
	defer all.Stop()
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Bookmark} {
		select {
		case event := <-all.ResultChan():
			if event.Type != want {
				t.Errorf("got %s %+v, want %s", event.Type, event.Object, want)
			}
		case <-time.After(waitTimeout):
			t.Fatalf("no event: %s is missing", want)
		}
	}
}

func testSchemas(t *testing.T, e *environment) {
	resources, err := e.server.Kubectl(t.Context(), "get", "--raw", "/apis/live.millrace.io/v1alpha1")
	must(t, err)
	for _, name := range []string{"servicetraffic", "vipannouncements", "bgpsessions", "flows", "drops"} {
		if !strings.Contains(string(resources), `"name":"`+name+`"`) {
			t.Errorf("discovery does not report %s: %s", name, resources)
		}
	}
	for field, want := range map[string]string{
		"servicetraffic.rates.bits":       "Bits is the size of these packets in bits per second",
		"servicetraffic.nodes.announcing": "Announcing is the number of nodes that announce",
		"vipannouncements.withheld":       "Withheld are nodes that do not announce the VIP",
		"bgpsessions.flaps":               "Flaps counts the lost sessions",
		"flows":                           "Flow represents a connection of a client",
		"drops.reason":                    "Reason is one word",
	} {
		var output []byte
		eventually(t, func(ctx context.Context) (err error) {
			output, err = e.server.Kubectl(ctx, "explain", field)
			return err
		})
		text := strings.Join(strings.Fields(string(output)), " ")
		if !strings.Contains(text, want) {
			t.Errorf("kubectl explain %s: %s", field, text)
		}
	}
}

// testTenants checks the permissions of a user with the role view in one namespace.
func testTenants(t *testing.T, e *environment) {
	e.create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "millrace-live-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: tenant}},
	})
	theirs, err := client.New(e.server.User(tenant), client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	eventually(t, func(ctx context.Context) error {
		return theirs.List(ctx, &livev1alpha1.ServiceTrafficList{}, client.InNamespace("shop"))
	})
	must(t, theirs.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, &livev1alpha1.ServiceTraffic{}))
	must(t, theirs.List(t.Context(), &livev1alpha1.FlowList{}, client.InNamespace("shop"), client.MatchingFields{"service": "web"}))
	for what, err := range map[string]error{
		"all traffic":     theirs.List(t.Context(), &livev1alpha1.ServiceTrafficList{}),
		"other traffic":   theirs.Get(t.Context(), client.ObjectKey{Namespace: "office", Name: "mail"}, &livev1alpha1.ServiceTraffic{}),
		"other flows":     theirs.List(t.Context(), &livev1alpha1.FlowList{}, client.InNamespace("office"), client.MatchingFields{"service": "mail"}),
		"other drops":     theirs.List(t.Context(), &livev1alpha1.DropList{}, client.InNamespace("office"), client.MatchingFields{"service": "mail"}),
		"announcements":   theirs.List(t.Context(), &livev1alpha1.VIPAnnouncementList{}),
		"sessions":        theirs.List(t.Context(), &livev1alpha1.BGPSessionList{}),
		"deleting a flow": theirs.Delete(t.Context(), &livev1alpha1.Flow{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x"}}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want a refusal", what, err)
		}
	}
}

func testCommand(t *testing.T, e *environment) {
	program := filepath.Join(t.TempDir(), "millrace")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/millrace").CombinedOutput(); err != nil {
		t.Fatalf("building millrace: %v: %s", err, output)
	}
	theirs, err := e.server.WriteKubeconfig(tenant)
	must(t, err)
	ours, err := e.server.WriteAdminKubeconfig()
	must(t, err)
	for _, test := range []struct{ kubeconfig, line, want, complaint string }{
		{ours, "bgp peers", "node-b rack1 192.0.2.1 Established", ""},
		{ours, "bgp peers --node node-c -o json", `"node": "node-c"`, ""},
		{ours, "status -o json", `"answeredAgents": 3`, ""},
		{ours, "top --once", "3 nodes, 2 frontends, over 10 s, drops: NoEndpoint 4.00/s, NoFrontend 2.00/s", ""},
		{ours, "top --once", "node-a: the driver of eth0 rejects frames: transmit 0/s, redirect 2.00/s", ""},
		{theirs, "top --once -n shop", "3 nodes, 1 frontend, over 10 s, drops: NoEndpoint 4.00/s", ""},
		{theirs, "top --once -n shop", "198.51.100.1:80 TCP shop/web 20.0k 16.0M 40.0 4.00", ""},
		{theirs, "top --once -n office", "", "user tenant may not list servicetraffic.live.millrace.io in namespace office: ClusterRole view, bound in namespace office, permits it"},
		{theirs, "top --once", "", "user tenant may not list servicetraffic.live.millrace.io: ClusterRole millrace-live-viewer permits it"},
		{theirs, "bgp peers", "", "user tenant may not list bgpsessions.live.millrace.io: ClusterRole millrace-viewer permits it"},
	} {
		command := exec.CommandContext(t.Context(), program, append(strings.Fields(test.line), "--kubeconfig", test.kubeconfig)...)
		var stdout, stderr strings.Builder
		command.Stdout, command.Stderr = &stdout, &stderr
		err := command.Run()
		printed := strings.Join(strings.Fields(stdout.String()), " ")
		if (err != nil) != (test.complaint != "") || !strings.Contains(printed, test.want) || !strings.Contains(stderr.String(), test.complaint) ||
			test.complaint == "" && stderr.Len() > 0 {
			t.Errorf("millrace %s: %v, want %q and the complaint %q\n%s\n%s", test.line, err, test.want, test.complaint, stdout.String(), stderr.String())
		}
	}
	t.Run("account", func(t *testing.T) { testAccount(t, e, program) })
}

func testStrangers(t *testing.T, address string) {
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for path, want := range map[string]int{
		"/apis/live.millrace.io/v1alpha1/servicetraffic": http.StatusForbidden, "/metrics": http.StatusForbidden,
		"/debug/pprof/": http.StatusForbidden, "/livez": http.StatusOK, "/readyz": http.StatusOK,
	} {
		for _, header := range []http.Header{{}, {"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
			must(t, err)
			request.Header = header
			response, err := stranger.Do(request)
			must(t, err)
			_ = response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s returns %s", path, response.Status)
			}
		}
	}
	testUnread(t, address)
}

// testUnread checks how much a client can send before the server has read its request.
func testUnread(t *testing.T, address string) {
	dial := func(protocol string) *tls.Conn {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		return conn
	}
	conn := dial("http/1.1")
	_, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: test\r\nX: "+strings.Repeat("x", 80<<10))
	must(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 80 KiB without end: %s, want 431", response.Status)
	}
	conn = dial("h2")
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	framer := http2.NewFramer(conn, conn)
	must(t, framer.WriteSettings())
	frame, err := framer.ReadFrame()
	must(t, err)
	settings, is := frame.(*http2.SettingsFrame)
	if !is {
		t.Fatalf("the first frame is %v, want SETTINGS", frame)
	}
	for id, most := range map[http2.SettingID]uint32{
		http2.SettingMaxConcurrentStreams: 250, http2.SettingInitialWindowSize: 64 << 10, http2.SettingMaxHeaderListSize: 80 << 10,
	} {
		if value, has := settings.Value(id); !has || value > most {
			t.Errorf("%v is %d (%v), want at most %d", id, value, has, most)
		}
	}
}

// testRelay checks that the relay rejects tokens of other accounts, and the agents' tokens for the API
// server.
func testRelay(t *testing.T, e *environment) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: e.authority.pool(), ServerName: serviceName + "." + systemNamespace + ".svc",
	}}}
	e.create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "other"}})
	for _, test := range []struct {
		token string
		want  int
	}{
		{e.token(t, "millrace-agent", relay.Audience), http.StatusOK},
		{e.token(t, "millrace-agent"), http.StatusUnauthorized},
		{e.token(t, "millrace-agent", "millrace-gateway"), http.StatusUnauthorized},
		{agentUser, http.StatusUnauthorized},
		{e.token(t, "other", relay.Audience), http.StatusForbidden},
		{"", http.StatusForbidden},
		{"nobody", http.StatusUnauthorized},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			"https://"+e.address+relay.PathEndpointSlices+"?"+relay.Request{Snapshot: true}.Values().Encode(), nil)
		must(t, err)
		if test.token != "" {
			request.Header.Set("Authorization", "Bearer "+test.token)
		}
		response, err := client.Do(request)
		must(t, err)
		if response.StatusCode != test.want {
			t.Errorf("the token %q gets %s, want %d", test.token, response.Status, test.want)
		}
		if response.StatusCode == http.StatusOK {
			snapshot(t, response.Body)
		}
		must(t, response.Body.Close())
	}
}

func snapshot(t *testing.T, stream io.Reader) {
	t.Helper()
	names := map[string]bool{}
	for decoder := relay.NewDecoder(stream); ; {
		event, err := decoder.Decode()
		must(t, err)
		if event.Type == relay.Bookmark {
			break
		}
		names[event.Slice.Namespace+"/"+event.Slice.Name] = true
	}
	for _, name := range []string{"shop/web-1", "office/mail-1"} {
		if !names[name] {
			t.Errorf("the relay returns %v, want also %s", names, name)
		}
	}
}

// testRotation replaces the CA as the operator does, during requests. No request may fail, and no node may be
// missing.
func testRotation(t *testing.T, e *environment) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	requests, failed := 0, make(chan error, 1)
	e.warnings.Take()
	go func() {
		defer close(failed)
		for ctx.Err() == nil {
			// The API server reconnects when the CA bundle of the APIService changes.
			if err := e.client.List(ctx, &livev1alpha1.ServiceTrafficList{}); err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
			requests++
		}
	}()
	next := newAuthority(t)
	both := slices.Concat(e.authority.encoded(), next.encoded())
	clients := e.authority.pool()
	clients.AddCert(next.certificate)
	trust := func(certificates []byte) {
		must(t, e.client.Patch(t.Context(), e.apiService, client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"caBundle":"`+bundle(certificates)+`"}}`))))
	}
	shown := func() *x509.Certificate {
		connection, err := tls.Dial("tcp", e.address, &tls.Config{InsecureSkipVerify: true, ServerName: serviceName + "." + systemNamespace + ".svc"})
		must(t, err)
		defer connection.Close()
		return connection.ConnectionState().PeerCertificates[0]
	}
	trust(both)
	e.mount(t, e.authority, both)
	for _, agent := range e.agents {
		agent.trust(t, e.authority, clients)
	}
	for _, agent := range e.agents {
		agent.trust(t, next, clients)
	}
	e.mount(t, next, both)
	eventually(t, func(context.Context) error {
		if shown().CheckSignatureFrom(next.certificate) != nil {
			return errors.New("the server shows its former certificate")
		}
		return nil
	})
	// New connections to agents use the new CA, too.
	for _, agent := range e.agents {
		agent.closeConnections()
	}
	eventually(t, func(ctx context.Context) error {
		for name, agent := range e.agents {
			if agent.connected() == 0 {
				return fmt.Errorf("%s has no connection", name)
			}
		}
		return nil
	})
	trust(next.encoded())
	e.mount(t, next, next.encoded())
	must(t, e.client.List(t.Context(), &livev1alpha1.ServiceTrafficList{}))
	cancel()
	if err := <-failed; err != nil || requests == 0 {
		t.Errorf("after %d requests: %v", requests, err)
	}
	if warnings := e.warnings.Take(); warnings != "" {
		t.Errorf("the answers were partial: %s", warnings)
	}
}

func testPartial(t *testing.T, e *environment) {
	e.agents["node-c"].stop()
	const want = "1 of 3 nodes did not answer: node-c"
	eventually(t, func(ctx context.Context) error {
		e.warnings.Take()
		list := &livev1alpha1.ServiceTrafficList{}
		if err := e.client.List(ctx, list); err != nil {
			return err
		}
		if warnings := e.warnings.Take(); warnings != want {
			return fmt.Errorf("the warning is %q", warnings)
		}
		if web := list.Items[1]; web.Rates.Connections != 20 || web.Nodes != (livev1alpha1.NodeCount{Announcing: 1, Total: 3}) {
			return fmt.Errorf("the rest is %+v", web)
		}
		return nil
	})
	for _, list := range []client.ObjectList{&livev1alpha1.VIPAnnouncementList{}, &livev1alpha1.BGPSessionList{}} {
		must(t, e.client.List(t.Context(), list))
		if warnings := e.warnings.Take(); warnings != want {
			t.Errorf("%T: the warning is %q", list, warnings)
		}
		if answers := answersOf(list); !slices.Equal(answers.Silent, []string{"node-c"}) || !slices.Equal(answers.Answered, []string{"node-a", "node-b"}) {
			t.Errorf("%T: the list is of %v without %v", list, answers.Answered, answers.Silent)
		}
	}
	must(t, e.client.List(t.Context(), &livev1alpha1.DropList{}, client.InNamespace("shop"), client.MatchingFields{"service": "web"}))
	if warnings := e.warnings.Take(); warnings != want {
		t.Errorf("drops: the warning is %q", warnings)
	}
}

func answersOf(list client.ObjectList) livev1alpha1.NodeAnswers {
	switch list := list.(type) {
	case *livev1alpha1.VIPAnnouncementList:
		return list.NodeAnswers
	case *livev1alpha1.BGPSessionList:
		return list.NodeAnswers
	}
	return livev1alpha1.NodeAnswers{}
}

// testNamespaces deletes a namespace while all agents are stopped. Kubernetes lists the objects of each API
// for this.
func testNamespaces(t *testing.T, e *environment) {
	for _, agent := range e.agents {
		agent.stop()
	}
	e.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}})
	e.server.RunController(t, "namespace-controller")
	must(t, e.client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}))
	eventually(t, func(ctx context.Context) error {
		err := e.client.Get(ctx, client.ObjectKey{Name: "gone"}, &corev1.Namespace{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace still exists: %w", err)
	})
	must(t, e.client.List(t.Context(), &livev1alpha1.ServiceTrafficList{}))
}

// TestLinked checks that only cmd/liveapi links the packages of API servers.
func TestLinked(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}: {{join .Deps " "}}`, "../cmd/...").Output()
	must(t, err)
	for line := range strings.Lines(string(output)) {
		program, packages, _ := strings.Cut(line, ": ")
		linked := slices.Contains(strings.Fields(packages), "k8s.io/apiserver/pkg/server")
		if linked != strings.HasSuffix(program, "/cmd/liveapi") {
			t.Errorf("%s has k8s.io/apiserver/pkg/server: %t", program, linked)
		}
	}
}
