// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/resource"
)

const waitTimeout = 20 * time.Second

// certificate returns server credentials for 127.0.0.1, and client credentials that trust them.
func certificate(t *testing.T) (own, trusting credentials.TransportCredentials) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	pool := x509.NewCertPool()
	pool.AddCert(web.Certificate())
	return credentials.NewTLS(&tls.Config{Certificates: web.TLS.Certificates}),
		credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
}

type controller struct {
	*Server
	address  string
	trusting credentials.TransportCredentials
	stop     func()
}

func authenticate(_ context.Context, token string) (Identity, error) {
	owner, pod, found := cut(token)
	if !found {
		return Identity{}, errors.New("unknown token")
	}
	return Identity{Owner: owner, Pod: pod}, nil
}

func cut(token string) (owner, pod string, found bool) {
	for _, owner := range []string{"blue", "green"} {
		if token == "of "+owner {
			return owner, "default/" + owner + "-1", true
		}
	}
	return "", "", false
}

func startController(t *testing.T) *controller {
	t.Helper()
	own, trusting := certificate(t)
	c := &controller{Server: NewServer(authenticate), trusting: trusting}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	serving := c.NewGRPC(ctx, own)
	ended := make(chan error, 1)
	go func() { ended <- serving.Serve(listener) }()
	c.stop = func() {
		cancel()
		serving.Stop()
		if err := <-ended; err != nil {
			t.Errorf("the server returned %v", err)
		}
		c.stop = func() {}
	}
	t.Cleanup(func() { c.stop() })
	return c
}

type proxy struct {
	updates chan distribution.Update
	// has is the configuration after the updates that next has returned.
	has map[string]string
}

func startProxy(t *testing.T, c *controller, token string, store *distribution.Store, refused func() []string) *proxy {
	t.Helper()
	p := &proxy{updates: make(chan distribution.Update, 100)}
	client := &distribution.Client{
		Address: c.address, Transport: c.trusting, Store: store,
		Token: func() (string, error) { return token, nil },
		Apply: func(update distribution.Update) { p.updates <- update }, Refused: refused,
		Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the client returned %v", err)
		}
	})
	return p
}

func (p *proxy) next(t *testing.T) distribution.Update {
	t.Helper()
	select {
	case update := <-p.updates:
		p.has = carryOut(p.has, update)
		return update
	case <-time.After(waitTimeout):
		t.Fatal("timeout while waiting for an update")
		return distribution.Update{}
	}
}

func certificates(contents map[string]string) []*resource.Resource {
	var all []*resource.Resource
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		all = append(all, &resource.Resource{Name: name, Kind: &resource.Resource_Certificate{
			Certificate: &resource.Certificate{Chain: []byte(contents[name])},
		}})
	}
	return all
}

func (c *controller) set(t *testing.T, owner string, contents map[string]string) {
	t.Helper()
	c.Set(owner, certificates(contents))
}

func carryOut(have map[string]string, update distribution.Update) map[string]string {
	have = maps.Clone(have)
	if update.Whole || have == nil {
		have = map[string]string{}
	}
	for _, name := range update.Removed {
		delete(have, name)
	}
	for _, r := range update.Changed {
		have[r.GetName()] = string(r.GetCertificate().GetChain())
	}
	return have
}

func (p *proxy) wantContents(t *testing.T, want map[string]string) distribution.Update {
	t.Helper()
	update := p.next(t)
	if !maps.Equal(p.has, want) {
		t.Errorf("version %s contains %v, want %v", update.Version, p.has, want)
	}
	return update
}

func (c *controller) awaitProxy(t *testing.T, what string, so func(Proxy) bool) Proxy {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	for {
		all := c.Proxies()
		if len(all) == 1 && so(all[0]) {
			return all[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("timeout while waiting for a proxy that %s; proxies %+v", what, all)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestProxiesGetTheirOwnersVersions(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1", "b": "1"})
	c.set(t, "green", map[string]string{"a": "green"})
	p := startProxy(t, c, "of blue", nil, nil)
	p.wantContents(t, map[string]string{"a": "1", "b": "1"})
	c.set(t, "blue", map[string]string{"a": "2", "c": "1"})
	last := p.wantContents(t, map[string]string{"a": "2", "c": "1"})
	if last.Whole || len(last.Changed) != 2 || !slices.Equal(last.Removed, []string{"b"}) {
		t.Errorf("update = %+v, want only the differences", last)
	}
	known := c.awaitProxy(t, "acknowledges", func(p Proxy) bool { return p.Acknowledged == last.Version })
	if known.Pod != "default/blue-1" || known.Refusal != "" {
		t.Errorf("%+v, want pod default/blue-1 without a refusal", known)
	}
	if c.Set("blue", certificates(map[string]string{"a": "2", "c": "1"})) {
		t.Error("Set with equal resources reports a change")
	}
	if c.Update("blue", certificates(map[string]string{"c": "1"})) {
		t.Error("Update with an equal resource reports a change")
	}
	c.Update("blue", certificates(map[string]string{"b": "4", "c": "2"}))
	p.wantContents(t, map[string]string{"a": "2", "b": "4", "c": "2"})
	c.set(t, "green", map[string]string{"a": "greener"})
	c.set(t, "blue", map[string]string{"a": "3"})
	p.wantContents(t, map[string]string{"a": "3"})
}

// TestOwnerComesLater checks that a waiting proxy receives the configuration of an owner that is added later.
func TestOwnerComesLater(t *testing.T) {
	c := startController(t)
	p := startProxy(t, c, "of blue", nil, nil)
	c.set(t, "blue", map[string]string{"a": "1"})
	p.wantContents(t, map[string]string{"a": "1"})
}

func TestRejection(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1"})
	var reasons atomic.Pointer[[]string]
	reasons.Store(&[]string{})
	p := startProxy(t, c, "of blue", nil, func() []string { return *reasons.Load() })
	p.next(t)
	reasons.Store(&[]string{"resource a is bad", strings.Repeat("ü", 1000)})
	c.set(t, "blue", map[string]string{"a": "bad", "b": "2"})
	refused := c.awaitProxy(t, "rejects", func(p Proxy) bool { return p.Refusal != "" })
	if !strings.HasPrefix(refused.Refusal, "resource a is bad; ü") || !strings.HasSuffix(refused.Refusal, "ü ...") ||
		len(refused.Refusal) > 1024 || refused.Acknowledged != refused.Sent {
		t.Errorf("%+v, want a shortened rejection and version %s acknowledged", refused, refused.Sent)
	}
	p.next(t)
	reasons.Store(&[]string{})
	c.set(t, "blue", map[string]string{"a": "3", "b": "2"})
	p.wantContents(t, map[string]string{"a": "3", "b": "2"})
	c.awaitProxy(t, "accepts again", func(p Proxy) bool { return p.Refusal == "" && p.Acknowledged == p.Sent })
}

func raw(
	t *testing.T, c *controller, token string, first *discovery.DeltaDiscoveryRequest, as ...func(context.Context) context.Context,
) discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	connection, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(c.trusting))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	for _, with := range as {
		ctx = with(ctx)
	}
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return stream
}

func request(initial map[string]string) *discovery.DeltaDiscoveryRequest {
	return &discovery.DeltaDiscoveryRequest{
		TypeUrl: distribution.TypeURL, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: initial,
	}
}

func TestUnauthenticatedUsersAreRejected(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "secret"})
	for _, token := range []string{"", "stolen"} {
		_, err := raw(t, c, token, request(nil)).Recv()
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("token %q: %v, want Unauthenticated", token, err)
		}
	}
	other := request(nil)
	other.TypeUrl = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	if _, err := raw(t, c, "of blue", other).Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("other resource type: %v, want InvalidArgument", err)
	}
}

// TestTokenDeterminesOwner checks that the owner is determined by the token and not by the request.
func TestTokenDeterminesOwner(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "secret"})
	c.set(t, "green", map[string]string{"g": "own"})
	forged := request(nil)
	forged.Node = &core.Node{Id: "blue"}
	response, err := raw(t, c, "of green", forged).Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(response); !slices.Equal(got, []string{"g"}) {
		t.Errorf("got %v, want g only", got)
	}
}

func names(response *discovery.DeltaDiscoveryResponse) []string {
	var all []string
	for _, r := range response.GetResources() {
		all = append(all, r.GetName())
	}
	slices.Sort(all)
	return all
}

// TestControllersAgreeOnVersions checks that another replica sends only the difference to the proxy's
// version.
func TestControllersAgreeOnVersions(t *testing.T) {
	one, two := startController(t), startController(t)
	one.set(t, "blue", map[string]string{"a": "1", "b": "1", "c": "1"})
	response, err := raw(t, one, "of blue", request(nil)).Recv()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for _, r := range response.GetResources() {
		known[r.GetName()] = r.GetVersion()
	}
	two.set(t, "blue", map[string]string{"a": "0"})
	two.set(t, "blue", map[string]string{"a": "1", "b": "2"})
	response, err = raw(t, two, "of blue", request(known)).Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(response); !slices.Equal(got, []string{"b"}) || !slices.Equal(response.GetRemovedResources(), []string{"c"}) {
		t.Errorf("sent %v and removed %v, want b sent and c removed", got, response.GetRemovedResources())
	}
}

func awaitKept(t *testing.T, path, version string) {
	t.Helper()
	kept := ""
	for deadline := time.Now().Add(waitTimeout); kept != version; time.Sleep(5 * time.Millisecond) {
		if err := (&distribution.Store{Path: path}).Load(func(part *discovery.DeltaDiscoveryResponse) error {
			kept = part.GetSystemVersionInfo()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("version %q is retained, want %s", kept, version)
		}
	}
}

func TestStore(t *testing.T) {
	store := &distribution.Store{Path: filepath.Join(t.TempDir(), "configuration")}
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1", "b": "1"})
	p := startProxy(t, c, "of blue", store, nil)
	first := p.next(t)
	awaitKept(t, store.Path, first.Version)
	c.stop()
	again := startProxy(t, c, "of blue", store, nil)
	again.wantContents(t, map[string]string{"a": "1", "b": "1"})

	if err := os.WriteFile(store.Path, []byte("not a configuration"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := startController(t)
	other.set(t, "blue", map[string]string{"a": "2"})
	startProxy(t, other, "of blue", store, nil).wantContents(t, map[string]string{"a": "2"})
}

// TestOwnerGoes checks that a proxy keeps its configuration after its owner is removed.
func TestOwnerGoes(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1"})
	p := startProxy(t, c, "of blue", nil, nil)
	p.wantContents(t, map[string]string{"a": "1"})
	c.Remove("blue")
	c.set(t, "blue", map[string]string{"b": "1"})
	p.wantContents(t, map[string]string{"b": "1"})
}

// TestSnapshots checks that the difference of two snapshots is minimal, and that snapshots share unchanged
// entries.
func TestSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.MapOfN(rapid.StringMatching("[a-h]"), rapid.StringMatching("[0-2]"), 0, 8)
		s := NewServer(nil)
		all := []map[string]string{{}}
		snapshots := []*snapshot{{}}
		for range rapid.IntRange(1, 6).Draw(t, "versions") {
			next := draw.Draw(t, "version")
			if len(all) > 1 && rapid.Bool().Draw(t, "update") {
				s.Update("blue", certificates(next))
				merged := maps.Clone(all[len(all)-1])
				maps.Copy(merged, next)
				next = merged
			} else {
				s.Set("blue", certificates(next))
			}
			current, _ := s.current("blue")
			all, snapshots = append(all, next), append(snapshots, current)
		}
		from := rapid.IntRange(0, len(all)-1).Draw(t, "from")
		to := rapid.IntRange(0, len(all)-1).Draw(t, "to")
		versions := map[string]string{}
		for _, e := range snapshots[from].entries {
			packed, err := e.pack()
			if err != nil {
				t.Fatal(err)
			}
			versions[packed.GetName()] = packed.GetVersion()
		}
		changed, removed := snapshots[to].since(snapshots[from])
		differing, gone := snapshots[to].differing(versions)
		if !slices.Equal(removed, gone) {
			t.Errorf("removed %v by entries, but %v by versions", removed, gone)
		}
		for what, changed := range map[string][]*entry{"entries": changed, "versions": differing} {
			got := maps.Clone(all[from])
			for _, name := range removed {
				delete(got, name)
			}
			for _, e := range changed {
				name, content := e.resource.GetName(), string(e.resource.GetCertificate().GetChain())
				if what == "versions" && got[name] == content && content != "" {
					t.Errorf("%s was sent, but did not change", name)
				}
				got[name] = content
			}
			if !maps.Equal(got, all[to]) {
				t.Errorf("%s from %v results in %v, want %v", what, all[from], got, all[to])
			}
		}
		if to == from+1 {
			for _, e := range changed {
				if before, known := all[from][e.resource.GetName()]; known && before == string(e.resource.GetCertificate().GetChain()) {
					t.Errorf("%s did not change, but its entry did", e.resource.GetName())
				}
			}
		}
	})
}
