// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/api/live"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

const waitTimeout = 20 * time.Second

type authority struct {
	t           *testing.T
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprint(time.Now().UnixNano())},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{t, key, certificate}
}

func (a *authority) issue(host string, usage x509.ExtKeyUsage) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{host}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.certificate, &key.PublicKey, a.key)
	must(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) write(directory string) {
	client := a.issue(live.ClientName, x509.ExtKeyUsageClientAuth)
	key, err := x509.MarshalPKCS8PrivateKey(client.PrivateKey)
	must(a.t, err)
	for name, block := range map[string]*pem.Block{
		"ca.crt":     {Type: "CERTIFICATE", Bytes: a.certificate.Raw},
		"client.crt": {Type: "CERTIFICATE", Bytes: client.Certificate[0]},
		"client.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		must(a.t, os.WriteFile(filepath.Join(directory, name), pem.EncodeToMemory(block), 0o600))
	}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

func start(t *testing.T, a *authority, host string, handler http.Handler) (server *httptest.Server, at netip.AddrPort) {
	t.Helper()
	server = httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{a.issue(host, x509.ExtKeyUsageServerAuth)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: a.pool(),
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, server.Listener.Addr().(*net.TCPAddr).AddrPort()
}

// answering returns a handler that answers as a node with continuous traffic.
func answering(node string, also http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(live.PathTraffic, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get(live.ParameterSince) != "" {
			select {
			case <-r.Context().Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		body, _ := (&live.Traffic{Node: node, Cursor: "c"}).AppendBinary(nil)
		_ = live.WriteBody(w, body)
	})
	mux.HandleFunc(live.PathState, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get(live.ParameterSince) != "" {
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(live.State{Node: node, Cursor: "c", Whole: true})
	})
	mux.HandleFunc("/", also)
	return mux
}

type fakeStore struct {
	mu   sync.Mutex
	last map[string]error
}

func (r *fakeStore) report(node string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[node] = err
}

func (r *fakeStore) of(node string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[node]
}

func newCollector(t *testing.T, directory string, port uint16) (*Collector, *store.Store, *fakeStore) {
	reports, s := &fakeStore{last: map[string]error{}}, store.New()
	return New(Options{Store: s, Directory: directory, Port: port, Report: reports.report}), s, reports
}

// TestUntrustedAgents checks that responses are rejected, with a reported error, if the agent's certificate
// is not trusted or another node answers.
func TestUntrustedAgents(t *testing.T) {
	ours, theirs, directory := newAuthority(t), newAuthority(t), t.TempDir()
	ours.write(directory)
	none := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) }
	for name, test := range map[string]struct {
		authority *authority
		host      string
		handler   http.Handler
		want      string
	}{
		"another CA":   {theirs, live.AgentName, answering("a", none), "certificate signed by unknown authority"},
		"a client":     {ours, live.ClientName, answering("a", none), "certificate is valid for " + live.ClientName},
		"another node": {ours, live.AgentName, answering("b", none), `is the address of node a, but node "b" answered`},
		"an error":     {ours, live.AgentName, http.HandlerFunc(none), "query the agent of node a: 404 Not Found: no"},
		"no answer":    {ours, live.AgentName, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "read the answer of the agent of node a: the version of the body is not supported"},
	} {
		_, at := start(t, test.authority, test.host, test.handler)
		collector, s, reports := newCollector(t, directory, at.Port())
		ctx, cancel := context.WithCancel(t.Context())
		collector.SetNodes(ctx, []Node{{"a", at.Addr()}})
		eventually(t, func() error {
			if err := reports.of("a"); err == nil || !strings.Contains(err.Error(), test.want) {
				return fmt.Errorf("%s: want %q, not %w", name, test.want, err)
			}
			return nil
		})
		if silent := s.Coverage(time.Now()).Silent; len(silent) != 1 {
			t.Errorf("%s: silent are %q", name, silent)
		}
		cancel()
	}
}

// TestRecoveredAgent checks that new connections use replaced certificates, and that a recovered agent is
// queried again.
func TestRecoveredAgent(t *testing.T) {
	ours, directory := newAuthority(t), t.TempDir()
	ours.write(directory)
	none := func(http.ResponseWriter, *http.Request) {}
	server, at := start(t, ours, live.AgentName, answering("a", none))
	collector, s, reports := newCollector(t, directory, at.Port())
	collector.SetNodes(t.Context(), []Node{{"a", at.Addr()}, {"gone", netip.MustParseAddr("127.0.0.77")}})
	answers := func() error {
		if coverage := s.Coverage(time.Now()); coverage.Nodes != 2 || len(coverage.Silent) != 1 {
			return fmt.Errorf("silent are %q: %w", coverage.Silent, reports.of("a"))
		}
		return reports.of("a")
	}
	eventually(t, answers)

	server.CloseClientConnections()
	server.Listener.Close()
	eventually(t, func() error {
		if reports.of("a") == nil {
			return errors.New("nothing is reported")
		}
		return nil
	})
	renewed := newAuthority(t)
	renewed.write(directory)
	listener, err := net.Listen("tcp", at.String())
	must(t, err)
	again := httptest.NewUnstartedServer(answering("a", none))
	again.Listener.Close()
	again.Listener = listener
	again.TLS = &tls.Config{
		Certificates: []tls.Certificate{renewed.issue(live.AgentName, x509.ExtKeyUsageServerAuth)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: renewed.pool(),
	}
	again.StartTLS()
	t.Cleanup(again.Close)
	eventually(t, answers)
	collector.SetNodes(t.Context(), nil)
	if coverage := s.Coverage(time.Now()); coverage.Nodes != 0 {
		t.Errorf("%d nodes are left", coverage.Nodes)
	}
}

// TestQuestions checks that a query is sent to its nodes only, concurrently with the waiting requests and
// over the same connection.
func TestQuestions(t *testing.T) {
	ours, directory := newAuthority(t), t.TempDir()
	ours.write(directory)
	var mu sync.Mutex
	remotes := map[string]bool{}
	server, at := start(t, ours, live.AgentName, answering("a", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		remotes[r.RemoteAddr] = true
		if r.Proto != "HTTP/2.0" || r.URL.Query().Get(live.ParameterService) != "shop/web" || r.URL.Query().Get(live.ParameterLimit) != "7" {
			http.Error(w, r.Proto+" "+r.URL.String(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(live.Flows{Node: "a", Items: []live.Flow{{Protocol: "TCP"}}})
	}))
	collector, s, _ := newCollector(t, directory, at.Port())
	collector.SetNodes(t.Context(), []Node{{"a", at.Addr()}})
	eventually(t, func() error {
		if silent := s.Coverage(time.Now()).Silent; len(silent) > 0 {
			return errors.New("a does not answer")
		}
		return nil
	})
	for range 3 {
		found, silent := collector.Flows(t.Context(), []string{"a", "absent"}, Query{Service: store.Name{Namespace: "shop", Name: "web"}, Limit: 7})
		if len(found) != 1 || len(found[0].Items) != 1 || len(silent) != 1 || silent[0] != "absent" {
			t.Fatalf("found %+v, silent are %q", found, silent)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(remotes) != 1 {
		t.Errorf("there were %d connections", len(remotes))
	}
	server.CloseClientConnections()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, condition func() error) {
	t.Helper()
	for end := time.Now().Add(waitTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
