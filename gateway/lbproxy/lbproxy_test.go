// SPDX-License-Identifier: Apache-2.0

package lbproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/gateway/distribution/server"
	"github.com/millrace-lb/millrace/gateway/lbproxy"
	"github.com/millrace-lb/millrace/gateway/proxy"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/test/blackhole"
)

const (
	name        = "controller.example.com"
	owner       = "IngressClass//millrace"
	waitTimeout = 20 * time.Second
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type world struct {
	directory      string
	configurations *server.Server
	address        string
	backend        *httptest.Server
	many           []*resource.Endpoint
	port           int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{directory: t.TempDir(), address: freeAddress(t)}
	w.configurations = server.NewServer(func(_ context.Context, token string) (server.Identity, error) {
		if token != "secret" {
			return server.Identity{}, errors.New("unknown")
		}
		return server.Identity{Owner: owner, Pod: "shop/proxy"}, nil
	})
	w.backend = httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		fmt.Fprint(answer, "backend ", request.Header.Get("X-Forwarded-For"))
	}))
	t.Cleanup(w.backend.Close)
	_, port, err := net.SplitHostPort(freeAddress(t))
	must(t, err)
	w.port, err = strconv.Atoi(port)
	must(t, err)
	w.write(t, "token", []byte(" secret\n"))
	return w
}

func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer free.Close()
	return free.Addr().String()
}

func (w *world) file(name string) string { return filepath.Join(w.directory, name) }

func (w *world) write(t *testing.T, name string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(w.file(name), content, 0o600))
}

func (w *world) control(t *testing.T) (stop func()) {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	must(t, err)
	w.write(t, "ca.crt", chain)
	pair, err := tls.X509KeyPair(chain, key)
	must(t, err)
	at, err := net.Listen("tcp", w.address)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	serving := w.configurations.NewGRPC(ctx, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	go func() { _ = serving.Serve(at) }()
	stop = func() {
		cancel()
		serving.Stop()
	}
	t.Cleanup(stop)
	return stop
}

func (w *world) resources(t *testing.T, marker string) []*resource.Resource {
	t.Helper()
	at, err := url.Parse(w.backend.URL)
	must(t, err)
	port, err := strconv.ParseUint(at.Port(), 10, 16)
	must(t, err)
	all := []*resource.Resource{
		{Name: "listener", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 80, TargetPort: uint32(w.port), Protocol: resource.Listener_HTTP, Hostname: &resource.Hostname{},
		}}},
		{Name: "group", Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
			Listeners: []string{"listener"}, Hostname: &resource.Hostname{},
			Rules: []*resource.Rule{{
				Route: "ingress/shop/web/0", Match: &resource.Match{Path: &resource.PathMatch{Value: "/"}},
				Filters: []*resource.Filter{{Kind: &resource.Filter_ResponseHeaders{ResponseHeaders: &resource.HeaderChange{
					Set: []*resource.Header{{Name: "Marker", Value: marker}},
				}}}},
				Backends: []*resource.WeightedBackend{{Backend: "backend", Weight: 1}},
			}},
		}}},
		{Name: "backend", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "endpoints"}}},
		{Name: "endpoints", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{
			Endpoints: []*resource.Endpoint{{Address: at.Hostname(), Port: uint32(port)}},
		}}},
	}
	slices.SortFunc(all, func(a, b *resource.Resource) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

type running struct {
	logs  *logBuffer
	admin string
	stop  context.CancelFunc
	ended chan error
}

type logBuffer struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (s *logBuffer) Write(content []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.Write(content)
}

func (s *logBuffer) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.String()
}

func (w *world) run(t *testing.T) *running {
	t.Helper()
	return w.runAt(t, "127.0.0.1", "configuration")
}

func (w *world) runAt(t *testing.T, address, store string) *running {
	t.Helper()
	words := &logBuffer{}
	config := lbproxy.Config{
		Controller: w.address, ControllerName: name, ControllerCA: w.file("ca.crt"), Token: w.file("token"),
		Store: w.file(store), AdminAddress: freeAddress(t), Proxy: proxy.Defaults(),
	}
	config.Proxy.Address, config.Proxy.Log = address, slog.New(slog.NewTextHandler(words, nil))
	config.Proxy.DrainWait, config.Proxy.DrainGrace = time.Second, time.Second
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{logs: words, admin: config.AdminAddress, stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- lbproxy.Run(ctx, config) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.ended:
			must(t, err)
		case <-time.After(waitTimeout):
			t.Error("the proxy does not exit")
		}
	})
	return r
}

func get(address string) (status int, marker, body string, err error) {
	return getURL("http://"+address, nil)
}

func getURL(url string, secure *tls.Config) (status int, marker, body string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: secure}, Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header.Get("Marker"), string(content), err
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", waitTimeout, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *running) ready(t *testing.T, want int) {
	t.Helper()
	eventually(t, func() error {
		if status, _, body, err := getURL("https://"+r.admin+"/readyz", &tls.Config{InsecureSkipVerify: true}); err != nil || status != want {
			return fmt.Errorf("/readyz returns %d %q, %w", status, body, err)
		}
		return nil
	})
}

func (w *world) serves(t *testing.T, marker string) {
	t.Helper()
	eventually(t, func() error {
		status, got, body, err := get(fmt.Sprintf("127.0.0.1:%d/x", w.port))
		if err != nil || status != http.StatusOK || got != marker || body != "backend 127.0.0.1" {
			return fmt.Errorf("status %d, marker %q, body %q, %w; want marker %q", status, got, body, err, marker)
		}
		return nil
	})
}

func (w *world) set(t *testing.T, marker string) {
	t.Helper()
	w.configurations.Set(owner, w.resources(t, marker))
}

// TestRun runs a proxy from its start without a controller to its shutdown under load.
func TestRun(t *testing.T) {
	w := newWorld(t)
	first := w.run(t)
	first.ready(t, http.StatusServiceUnavailable)

	w.set(t, "one")
	stop := w.control(t)
	first.ready(t, http.StatusOK)
	w.serves(t, "one")
	w.set(t, "two")
	w.serves(t, "two")

	// Another replica, with a certificate of another CA.
	stop()
	w.serves(t, "two")
	w.set(t, "three")
	stop = w.control(t)
	w.serves(t, "three")

	stop()
	first.stop()
	first.ready(t, http.StatusServiceUnavailable)
	w.serves(t, "three")
	must(t, <-first.ended)
	first.ended <- nil
	second := w.run(t)
	second.ready(t, http.StatusOK)
	w.serves(t, "three")
	w.set(t, "four")
	w.control(t)
	w.serves(t, "four")
}

// TestBadResource checks that the proxy serves all but resources that are invalid or cannot be encoded.
func TestBadResource(t *testing.T) {
	w := newWorld(t)
	bad := map[string]*resource.Resource{
		"group/bad": {Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
			Hostname: &resource.Hostname{Name: "bad.example.com"},
			Rules:    []*resource.Rule{{Route: "httproute/bad/r/0", Filters: []*resource.Filter{{}}}},
		}}},
		"certificate/bad": {Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{Chain: []byte("none")}}},
		"endpoints/bad":   {Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{Endpoints: []*resource.Endpoint{{Address: "none", Port: 1}}}}},
		"backend/bad":     {Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "\xff"}}},
	}
	set := func(marker string, names ...string) {
		all := w.resources(t, marker)
		for _, name := range names {
			bad[name].Name = name
			all = append(all, bad[name])
		}
		slices.SortFunc(all, func(a, b *resource.Resource) int { return strings.Compare(a.GetName(), b.GetName()) })
		w.configurations.Set(owner, all)
	}
	expectLogs := func(want ...string) {
		t.Helper()
		eventually(t, func() error {
			connected := w.configurations.Proxies()
			if len(connected) != 1 {
				return fmt.Errorf("%d proxies are connected, want 1", len(connected))
			}
			proxy := connected[0]
			got := slices.DeleteFunc(slices.Sorted(maps.Keys(bad)), func(name string) bool { return !strings.Contains(proxy.Refusal, name) })
			if !slices.Equal(got, want) || proxy.Acknowledged != proxy.Sent {
				return fmt.Errorf("rejected %q of version %s, want %q; acknowledged version %s", proxy.Refusal, proxy.Sent, want, proxy.Acknowledged)
			}
			return nil
		})
	}
	set("one")
	w.control(t)
	w.run(t).ready(t, http.StatusOK)
	w.serves(t, "one")
	for name := range bad {
		set("with "+name, name)
		w.serves(t, "with "+name)
		expectLogs(name)
	}
	names := slices.Sorted(maps.Keys(bad))
	set("with all", names...)
	w.serves(t, "with all")
	expectLogs(names...)
	set("last")
	w.serves(t, "last")
	expectLogs()
}

// TestHungStream checks keepalive: a stalled connection is replaced 20 + 10 seconds after the last byte.
func TestHungStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(t, "one")
	w.control(t)
	proxy := blackhole.New(t, w.address)
	w.address = proxy.Address
	w.run(t)
	w.serves(t, "one")
	if proxy.Drop() == 0 {
		t.Fatal("no connection to interrupt")
	}
	began := time.Now()
	w.set(t, "two")
	for marker := ""; marker != "two"; time.Sleep(100 * time.Millisecond) {
		var err error
		if _, marker, _, err = get(fmt.Sprintf("127.0.0.1:%d/x", w.port)); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > 36*time.Second {
			t.Fatalf("the proxy serves its stored configuration after %s; want 30 s plus one to connect", time.Since(began))
		}
	}
}

func TestUntrustedController(t *testing.T) {
	w := newWorld(t)
	w.set(t, "one")
	w.control(t)
	other, _, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	must(t, err)
	own, err := os.ReadFile(w.file("ca.crt"))
	must(t, err)
	w.write(t, "ca.crt", other)
	r := w.run(t)
	eventually(t, func() error {
		if text := r.logs.String(); !strings.Contains(text, "certificate signed by unknown authority") {
			return fmt.Errorf("the log does not explain the failed connection: %s", text)
		}
		return nil
	})
	r.ready(t, http.StatusServiceUnavailable)
	w.write(t, "ca.crt", own)
	r.ready(t, http.StatusOK)
}
