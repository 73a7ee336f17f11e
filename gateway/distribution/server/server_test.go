// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/resource"
)

const patience = 20 * time.Second

// certificate is one for 127.0.0.1, and who trusts it.
func certificate(t *testing.T) (own, trusting credentials.TransportCredentials) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	pool := x509.NewCertPool()
	pool.AddCert(web.Certificate())
	return credentials.NewTLS(&tls.Config{Certificates: web.TLS.Certificates}),
		credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
}

// controller is a running Server.
type controller struct {
	*Server
	address  string
	trusting credentials.TransportCredentials
	stop     func()
}

// authenticate takes the token "of OWNER".
func authenticate(_ context.Context, token string) (Identity, error) {
	owner, pod, found := cut(token)
	if !found {
		return Identity{}, errors.New("unknown to this test")
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
			t.Errorf("the server ended: %v", err)
		}
		c.stop = func() {}
	}
	t.Cleanup(func() { c.stop() })
	return c
}

// proxy is a running Client and what it applied.
type proxy struct {
	updates chan distribution.Update
	// refuse is told the update before it is applied.
	refuse func(distribution.Update) error
}

func startProxy(t *testing.T, c *controller, token string, store *distribution.Store, refuse func(distribution.Update) error) *proxy {
	t.Helper()
	p := &proxy{updates: make(chan distribution.Update, 100), refuse: refuse}
	client := &distribution.Client{
		Address: c.address, Transport: c.trusting, Store: store,
		Token: func() (string, error) { return token, nil },
		Apply: func(update distribution.Update) error {
			if p.refuse != nil {
				if err := p.refuse(update); err != nil {
					return err
				}
			}
			p.updates <- update
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the client ended: %v", err)
		}
	})
	return p
}

// next waits for an update.
func (p *proxy) next(t *testing.T) distribution.Update {
	t.Helper()
	select {
	case update := <-p.updates:
		return update
	case <-time.After(patience):
		t.Fatal("no update came")
		return distribution.Update{}
	}
}

func certificates(contents map[string]string) map[string]*resource.Resource {
	all := map[string]*resource.Resource{}
	for name, content := range contents {
		all[name] = &resource.Resource{Name: name, Kind: &resource.Resource_Certificate{
			Certificate: &resource.Certificate{Chain: []byte(content)},
		}}
	}
	return all
}

func (c *controller) set(t *testing.T, owner string, contents map[string]string) {
	t.Helper()
	if _, err := c.Set(owner, certificates(contents)); err != nil {
		t.Fatal(err)
	}
}

func contents(update distribution.Update) map[string]string {
	all := map[string]string{}
	for name, r := range update.Resources {
		all[name] = string(r.GetCertificate().GetChain())
	}
	return all
}

func wantContents(t *testing.T, update distribution.Update, want map[string]string) {
	t.Helper()
	if got := contents(update); !maps.Equal(got, want) {
		t.Errorf("version %s holds %v, want %v", update.Version, got, want)
	}
}

// awaitProxy waits until the controller sees the one proxy so.
func (c *controller) awaitProxy(t *testing.T, what string, so func(Proxy) bool) Proxy {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		all := c.Proxies()
		if len(all) == 1 && so(all[0]) {
			return all[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for a proxy that %s, there are %+v", what, all)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestProxiesGetTheirOwnersVersions(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1", "b": "1"})
	c.set(t, "green", map[string]string{"a": "green"})
	p := startProxy(t, c, "of blue", nil, nil)
	wantContents(t, p.next(t), map[string]string{"a": "1", "b": "1"})
	c.set(t, "blue", map[string]string{"a": "2", "c": "1"})
	last := p.next(t)
	wantContents(t, last, map[string]string{"a": "2", "c": "1"})
	known := c.awaitProxy(t, "acknowledges", func(p Proxy) bool { return p.Acknowledged == last.Version })
	if known.Pod != "default/blue-1" || known.Refusal != "" {
		t.Errorf("%+v, want pod default/blue-1 without a refusal", known)
	}
	if changed, err := c.Set("blue", certificates(map[string]string{"a": "2", "c": "1"})); changed || err != nil {
		t.Errorf("the same resources once more: changed %v, %v", changed, err)
	}
	c.set(t, "green", map[string]string{"a": "greener"})
	c.set(t, "blue", map[string]string{"a": "3"})
	wantContents(t, p.next(t), map[string]string{"a": "3"})
}

// A proxy that waits for its owner gets the configuration once there is one.
func TestOwnerComesLater(t *testing.T) {
	c := startController(t)
	p := startProxy(t, c, "of blue", nil, nil)
	c.set(t, "blue", map[string]string{"a": "1"})
	wantContents(t, p.next(t), map[string]string{"a": "1"})
}

// What a proxy refuses is known to the controller, and the next version is complete.
func TestRefusedVersion(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1"})
	p := startProxy(t, c, "of blue", nil, func(update distribution.Update) error {
		if contents(update)["a"] == "bad" {
			return errors.New("resource a is bad")
		}
		return nil
	})
	first := p.next(t)
	c.set(t, "blue", map[string]string{"a": "bad", "b": "2"})
	refused := c.awaitProxy(t, "refuses", func(p Proxy) bool { return p.Refusal != "" })
	if refused.Refusal != "resource a is bad" || refused.Acknowledged != first.Version {
		t.Errorf("%+v, want the refusal and version %s acknowledged", refused, first.Version)
	}
	c.set(t, "blue", map[string]string{"a": "3", "b": "2"})
	wantContents(t, p.next(t), map[string]string{"a": "3", "b": "2"})
	c.awaitProxy(t, "accepts again", func(p Proxy) bool { return p.Refusal == "" && p.Acknowledged == p.Sent })
}

// raw is a stream that says what a test wants.
func raw(t *testing.T, c *controller, token string, first *discovery.DeltaDiscoveryRequest) discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	connection, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(c.trusting))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(first); err != nil {
		t.Fatal(err)
	}
	return stream
}

func request(initial map[string]string) *discovery.DeltaDiscoveryRequest {
	return &discovery.DeltaDiscoveryRequest{
		TypeUrl: distribution.TypeURL, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: initial,
	}
}

func TestStrangersGetNothing(t *testing.T) {
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "secret"})
	for _, token := range []string{"", "stolen"} {
		_, err := raw(t, c, token, request(nil)).Recv()
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("with the token %q: %v, want Unauthenticated", token, err)
		}
	}
	other := request(nil)
	other.TypeUrl = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	if _, err := raw(t, c, "of blue", other).Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another type: %v, want InvalidArgument", err)
	}
}

// The token says whose proxy it is, not the request.
func TestNodeIDIsNotBelieved(t *testing.T) {
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

// Another controller with the same configuration sends only what differs.
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

// A proxy that starts while no controller answers serves what was kept.
func TestStore(t *testing.T) {
	store := &distribution.Store{Path: filepath.Join(t.TempDir(), "configuration")}
	c := startController(t)
	c.set(t, "blue", map[string]string{"a": "1", "b": "1"})
	p := startProxy(t, c, "of blue", store, nil)
	first := p.next(t)
	c.awaitProxy(t, "acknowledges", func(p Proxy) bool { return p.Acknowledged == first.Version })
	c.stop()
	again := startProxy(t, c, "of blue", store, nil)
	wantContents(t, again.next(t), map[string]string{"a": "1", "b": "1"})

	if err := os.WriteFile(store.Path, []byte("not a configuration"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := startController(t)
	other.set(t, "blue", map[string]string{"a": "2"})
	wantContents(t, startProxy(t, other, "of blue", store, nil).next(t), map[string]string{"a": "2"})
}
