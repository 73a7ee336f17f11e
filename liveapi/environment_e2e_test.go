// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package liveapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/liveapi"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// liveUser is the ServiceAccount of config/liveapi with its installed permissions only.
	liveUser  = "system:serviceaccount:millrace-system:millrace-liveapi"
	tenant    = "tenant"
	agentUser = "system:serviceaccount:millrace-system:millrace-agent"

	systemNamespace = "millrace-system"
	serviceName     = "millrace-liveapi"
	waitTimeout     = 30 * time.Second
)

// environment is a real API server that forwards requests for live.millrace.io to the program under test.
type environment struct {
	server   *controlplane.Server
	client   *controlplane.Objects
	warnings *controlplane.Warnings
	// directory contains the program's certificates behind a symbolic link, as the kubelet mounts them.
	directory string
	authority *authority
	port      uint16
	agents    map[string]*agent
	// address is the address of the program, to which apiService refers.
	address    string
	apiService *unstructured.Unstructured
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	e := &environment{
		server: controlplane.Start(t, "..", liveUser, tenant, agentUser), warnings: &controlplane.Warnings{},
		directory: filepath.Join(t.TempDir(), "mounted"), authority: newAuthority(t), port: controlplane.FreePort(t), agents: map[string]*agent{},
	}
	config := e.server.Admin()
	config.WarningHandlerWithContext = e.warnings
	e.client = e.server.Install(t, config, client.Options{}, livev1alpha1.AddToScheme)
	e.client.MakeNamespaces(t, systemNamespace, "shop", "office")
	e.client.MakeNamespaces(t, "millrace-bgp")
	e.client.MakeOf(t, "liveapi/role.yaml", "liveapi/viewer.yaml", "rbac/agent/role.yaml", "rbac/agent/role_binding.yaml",
		"rbac/agent/service_account.yaml")
	e.mount(t, e.authority, e.authority.encoded())
	return e
}

// mount atomically replaces the program's certificates with new ones of an authority.
func (e *environment) mount(t *testing.T, from *authority, trusted []byte) {
	t.Helper()
	directory := t.TempDir()
	from.write(t, directory, "tls", serviceName+"."+systemNamespace+".svc", x509.ExtKeyUsageServerAuth)
	from.write(t, directory, "client", live.ClientName, x509.ExtKeyUsageClientAuth)
	must(t, os.WriteFile(filepath.Join(directory, "ca.crt"), trusted, 0o600))
	previous, _ := os.Readlink(e.directory)
	must(t, os.Symlink(directory, e.directory+".next"))
	must(t, os.Rename(e.directory+".next", e.directory))
	must(t, os.RemoveAll(previous))
}

// token returns a token of a ServiceAccount for audiences, by default that of the API server.
func (e *environment) token(t *testing.T, account string, audiences ...string) string {
	t.Helper()
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: account}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	must(t, e.client.SubResource("token").Create(t.Context(), of, request))
	return request.Status.Token
}

func (e *environment) create(t *testing.T, object client.Object) {
	t.Helper()
	e.client.Make(t, object)
}

func (e *environment) node(t *testing.T, name string, number int) *agent {
	t.Helper()
	address := fmt.Sprintf("127.0.1.%d", number)
	e.create(t, &millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.LBNodeSpec{ID: int32(number), Addresses: []string{address}},
	})
	made := newAgent(t, name, fmt.Sprintf("%s:%d", address, e.port), e.authority)
	e.agents[name] = made
	return made
}

// service creates a Service with a VIP and one endpoint on each node; the first endpoint is not ready.
func (e *environment) service(t *testing.T, namespace, name, vip string, nodes ...string) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{millracev1beta1.Finalizer}, Labels: map[string]string{"app": name}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	e.create(t, service)
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip}}
	must(t, e.client.Status().Update(t.Context(), service))
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(i > 0)},
		})
	}
	e.create(t, slice)
}

// run starts the program and makes the API server forward requests to it on localhost instead of to pods.
func (e *environment) run(t *testing.T) (address string, stop func()) {
	t.Helper()
	port := controlplane.FreePort(t)
	address = fmt.Sprintf("127.0.0.1:%d", port)
	kubeconfig, err := e.server.WriteKubeconfig(liveUser)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done, logs := make(chan error, 1), &controlplane.Log{}
	go func() {
		done <- liveapi.Run(ctx, liveapi.Config{
			REST: e.server.User(liveUser), Kubeconfig: kubeconfig, Address: address, CertDir: e.directory, AgentPort: e.port, Relay: true,
		}, logr.FromSlogHandler(slog.NewJSONHandler(logs, nil)))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the program ended with %v", err)
			}
		case <-time.After(waitTimeout):
			t.Error("the program does not end")
		}
		if t.Failed() {
			t.Logf("the program output:\n%s", logs)
		}
	})
	t.Cleanup(stop)
	e.register(t, port)
	e.address = address
	eventually(t, func(ctx context.Context) error {
		return e.client.List(ctx, &livev1alpha1.ServiceTrafficList{})
	})
	return address, stop
}

func (e *environment) register(t *testing.T, port uint16) {
	t.Helper()
	e.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: serviceName},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
	content, err := os.ReadFile("../config/liveapi/api_service.yaml")
	must(t, err)
	e.apiService = &unstructured.Unstructured{}
	must(t, utilyaml.Unmarshal(content, &e.apiService.Object))
	must(t, errors.Join(
		unstructured.SetNestedField(e.apiService.Object, bundle(e.authority.encoded()), "spec", "caBundle"),
		unstructured.SetNestedField(e.apiService.Object, int64(port), "spec", "service", "port")))
	e.create(t, e.apiService)
}

type agent struct {
	name string
	stop func()

	mu          sync.Mutex
	tls         *tls.Config
	connections map[net.Conn]bool
	// traffic is returned for each request, as the traffic of five seconds.
	traffic  live.Traffic
	state    live.State
	changed  chan struct{}
	version  int
	flows    []live.Flow
	drops    live.Drops
	requests []string
}

func newAgent(t *testing.T, name, address string, authority *authority) *agent {
	t.Helper()
	a := &agent{name: name, changed: make(chan struct{}), connections: map[net.Conn]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+live.PathTraffic, a.serveTraffic)
	mux.HandleFunc("GET "+live.PathState, a.serveState)
	mux.HandleFunc("GET "+live.PathFlows, func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests = append(a.requests, r.URL.RequestURI())
		write(w, live.Flows{Node: name, Items: a.flows})
	})
	mux.HandleFunc("GET "+live.PathDrops, func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests = append(a.requests, r.URL.RequestURI())
		write(w, live.Drops{Node: name, Items: a.drops.Items, Truncated: a.drops.Truncated})
	})
	a.trust(t, authority, authority.pool())
	listener, err := net.Listen("tcp", address)
	must(t, err)
	server := &http.Server{Handler: mux, ConnState: a.count, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.tls, nil
		},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("not used") },
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(listener, "", "")
	}()
	a.stop = sync.OnceFunc(func() {
		_ = server.Close()
		<-done
	})
	t.Cleanup(a.stop)
	return a
}

// trust sets the agent's certificate, issued by an authority, and the CAs of accepted clients.
func (a *agent) trust(t *testing.T, authority *authority, clients *x509.CertPool) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tls = &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{authority.issue(t, live.AgentName, x509.ExtKeyUsageServerAuth)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: clients,
		VerifyConnection: func(state tls.ConnectionState) error {
			return state.PeerCertificates[0].VerifyHostname(live.ClientName)
		},
	}
}

func (a *agent) count(connection net.Conn, state http.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch state {
	case http.StateActive:
		a.connections[connection] = true
	case http.StateClosed, http.StateHijacked:
		delete(a.connections, connection)
	}
}

func (a *agent) connected() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.connections)
}

func (a *agent) closeConnections() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for connection := range a.connections {
		_ = connection.Close()
		delete(a.connections, connection)
	}
}

func (a *agent) serveTraffic(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get(live.ParameterSince) == "" {
		writeTraffic(w, live.Traffic{Node: a.name, Cursor: "1"})
		return
	}
	select {
	case <-r.Context().Done():
	case <-time.After(200 * time.Millisecond):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	traffic := a.traffic
	traffic.Node, traffic.Cursor, traffic.Seconds = a.name, "1", 5
	writeTraffic(w, traffic)
}

func (a *agent) serveState(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	changed, version := a.changed, fmt.Sprint(a.version)
	a.mu.Unlock()
	if r.URL.Query().Get(live.ParameterSince) == version {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(live.WaitLimit):
		case <-changed:
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	state := a.state
	state.Node, state.Whole, state.Cursor = a.name, true, fmt.Sprint(a.version)
	write(w, state)
}

func (a *agent) change(change func(*agent)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
	a.version++
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) requestsSince() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := a.requests
	a.requests = nil
	return requests
}

func write(w http.ResponseWriter, answer any) {
	body, _ := json.Marshal(answer)
	_ = live.WriteBody(w, body)
}

func writeTraffic(w http.ResponseWriter, traffic live.Traffic) {
	body, _ := traffic.AppendBinary(nil)
	_ = live.WriteBody(w, body)
}

type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{key, certificate}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

func bundle(certificates []byte) string { return base64.StdEncoding.EncodeToString(certificates) }

func (a *authority) encoded() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

func (a *authority) issue(t *testing.T, host string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, a.certificate, &key.PublicKey, a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) write(t *testing.T, directory, name, host string, usage x509.ExtKeyUsage) {
	t.Helper()
	pair := a.issue(t, host, usage)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	for file, content := range map[string][]byte{
		"ca.crt":      a.encoded(),
		name + ".crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		name + ".key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		must(t, os.WriteFile(filepath.Join(directory, file), content, 0o600))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	controlplane.Must(t, err)
}

func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	controlplane.Eventually(t, waitTimeout, condition)
}
