// SPDX-License-Identifier: Apache-2.0

package live

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
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
)

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := a.sign(t, template)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate: certificate, key: key}
}

func (a *authority) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func (a *authority) pair(t *testing.T, name string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	der, key := a.sign(t, &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) write(t *testing.T, directory string, pair tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
		"ca.crt":  {Type: "CERTIFICATE", Bytes: a.certificate.Raw},
	} {
		if err := os.WriteFile(filepath.Join(directory, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

type known struct {
	counting
	deciding
	drops []console.Drop
}

func (*known) Node() string                               { return "node1" }
func (k *known) Counters() (*console.Counters, error)     { return k.counting.read() }
func (k *known) VIPs(at time.Time) (*console.VIPs, error) { return k.decisions(at) }
func (k *known) Sessions() []console.BGPPeer              { return k.peers() }
func (k *known) Drops() []console.Drop                    { return append([]console.Drop{}, k.drops...) }
func (k *known) Flows(service string, clients netip.Prefix, limit int) ([]liveapi.Flow, bool, error) {
	return []liveapi.Flow{{Protocol: fmt.Sprintf("%s %s %d", service, clients, limit)}}, limit < 10, nil
}

type served struct {
	address   string
	directory string
	authority *authority
}

func serve(t *testing.T, source Source) *served {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &served{address: listener.Addr().String(), directory: t.TempDir(), authority: newAuthority(t)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- NewServer(source, logr.Discard()).Serve(ctx, listener, NewCertificates(s.directory))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("returned %v, want context.Canceled", err)
		}
	})
	return s
}

func (s *served) client(t *testing.T, shown ...tls.Certificate) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(s.authority.certificate)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: liveapi.AgentName, Certificates: shown,
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func (s *served) get(client *http.Client, path string, query url.Values, answer any) (status int, err error) {
	response, err := client.Get("https://" + s.address + path + "?" + query.Encode())
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if traffic, is := answer.(*liveapi.Traffic); err == nil && is {
		err = traffic.UnmarshalBinary(body)
	} else if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, answer)
	} else if err == nil {
		err = errors.New(string(body))
	}
	return response.StatusCode, err
}

func TestServer(t *testing.T) {
	web := netip.MustParseAddrPort("203.0.113.1:80")
	drop := func(client, service string, length int) console.Drop {
		return console.Drop{Source: netip.MustParseAddrPort(client), Destination: web, Service: service, Length: length}
	}
	source := &known{drops: []console.Drop{
		drop("198.51.100.1:1000", "default/web", 1), drop("198.51.100.2:1000", "default/web", 2),
		drop("198.51.100.1:1001", "other/web", 3), drop("198.51.100.1:1002", "default/web", 4),
	}}
	source.time = time.Now()
	source.vips = map[netip.Addr]console.VIPGroup{web.Addr(): {Peers: []string{"tor1"}}}
	s := serve(t, source)
	s.authority.write(t, s.directory, s.authority.pair(t, liveapi.AgentName, x509.ExtKeyUsageServerAuth))
	client := s.client(t, s.authority.pair(t, liveapi.ClientName, x509.ExtKeyUsageClientAuth))

	var traffic liveapi.Traffic
	if _, err := s.get(client, liveapi.PathTraffic, nil, &traffic); err != nil || traffic.Node != "node1" || traffic.Cursor == "" {
		t.Errorf("traffic = %+v, error %v", traffic, err)
	}
	var state liveapi.State
	if _, err := s.get(client, liveapi.PathState, nil, &state); err != nil || state.Node != "node1" || !state.Whole || len(state.VIPs) != 1 {
		t.Errorf("state = %+v, error %v", state, err)
	}
	var flows liveapi.Flows
	query := url.Values{liveapi.ParameterService: {"default/web"}, liveapi.ParameterClient: {"198.51.100.7"}, liveapi.ParameterLimit: {"3"}}
	if _, err := s.get(client, liveapi.PathFlows, query, &flows); err != nil || !flows.Truncated || flows.Items[0].Protocol != "default/web 198.51.100.7/32 3" {
		t.Errorf("flows = %+v, error %v", flows, err)
	}
	var drops liveapi.Drops
	query = url.Values{liveapi.ParameterService: {"default/web"}, liveapi.ParameterClient: {"198.51.100.1/32"}}
	if _, err := s.get(client, liveapi.PathDrops, query, &drops); err != nil || drops.Truncated || lengths(drops) != "4 1" {
		t.Errorf("drops = %+v, error %v; want those of the client and Service, latest first", drops, err)
	}
	query = url.Values{liveapi.ParameterService: {"default/web"}, liveapi.ParameterLimit: {"1"}}
	if _, err := s.get(client, liveapi.PathDrops, query, &drops); err != nil || !drops.Truncated || lengths(drops) != "4" {
		t.Errorf("drops = %+v, error %v; want the latest, truncated", drops, err)
	}
	for _, query := range []url.Values{
		{}, {"service": {"web"}}, {"service": {"/web"}}, {"service": {"default/"}},
		{"service": {"default/web"}, "limit": {"0"}}, {"service": {"default/web"}, "limit": {"1001"}},
		{"service": {"default/web"}, "client": {"198.51.100.0/33"}},
	} {
		for _, path := range []string{liveapi.PathFlows, liveapi.PathDrops} {
			if status, err := s.get(client, path, query, nil); status != http.StatusBadRequest {
				t.Errorf("%s with %v: status %d, %v; want %d", path, query, status, err, http.StatusBadRequest)
			}
		}
	}
}

func lengths(drops liveapi.Drops) string {
	var told []string
	for _, drop := range drops.Items {
		told = append(told, fmt.Sprint(drop.Length))
	}
	return strings.Join(told, " ")
}

// TestUntrusted checks that only the aggregated API is served, and only by a server with an agent's
// certificate.
func TestUntrusted(t *testing.T) {
	source := &known{}
	source.time = time.Now()
	s := serve(t, source)
	right := s.authority.pair(t, liveapi.ClientName, x509.ExtKeyUsageClientAuth)
	ask := func(shown ...tls.Certificate) error {
		var state liveapi.State
		_, err := s.get(s.client(t, shown...), liveapi.PathState, nil, &state)
		return err
	}
	if ask(right) == nil {
		t.Error("request served before a certificate was loaded")
	}
	agent := s.authority.pair(t, liveapi.AgentName, x509.ExtKeyUsageServerAuth)
	s.authority.write(t, s.directory, agent)
	if err := ask(right); err != nil {
		t.Errorf("the aggregated API was rejected: %v", err)
	}
	for name, shown := range map[string][]tls.Certificate{
		"nobody":                              nil,
		"agent certificate":                   {agent},
		"agent name in a client certificate":  {s.authority.pair(t, liveapi.AgentName, x509.ExtKeyUsageClientAuth)},
		"client name in a server certificate": {s.authority.pair(t, liveapi.ClientName, x509.ExtKeyUsageServerAuth)},
		"client certificate of another CA":    {newAuthority(t).pair(t, liveapi.ClientName, x509.ExtKeyUsageClientAuth)},
		"self-signed certificate":             {(&authority{}).pair(t, liveapi.ClientName, x509.ExtKeyUsageClientAuth)},
	} {
		if ask(shown...) == nil {
			t.Errorf("request with %s was served", name)
		}
	}

	// The next handshake uses the new files, and rejects the previous client.
	s.authority = newAuthority(t)
	s.authority.write(t, s.directory, s.authority.pair(t, liveapi.AgentName, x509.ExtKeyUsageServerAuth))
	if ask(right) == nil {
		t.Error("a client certificate of the previous CA was accepted")
	}
	if err := ask(s.authority.pair(t, liveapi.ClientName, x509.ExtKeyUsageClientAuth)); err != nil {
		t.Errorf("the renewed certificate of the aggregated API was rejected: %v", err)
	}
}
