// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package relay

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-lb/millrace/api/relay"
	server "github.com/millrace-lb/millrace/liveapi/relay"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const patience = time.Minute

const relayToken = "for relays alone"

// environment is a real API server with its clients.
type environment struct {
	t      *testing.T
	api    *controlplane.Server
	client *kubernetes.Clientset
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	api := controlplane.Start(t, "../../../..")
	clients, err := kubernetes.NewForConfig(api.Admin())
	controlplane.Must(t, err)
	_, err = clients.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	controlplane.Must(t, err)
	return &environment{t: t, api: api, client: clients}
}

// create creates an EndpointSlice of count endpoints.
func (e *environment) create(name string, count int) {
	e.t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range count {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("198.18.%d.%d", i/250, 1+i%250)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%04d", i)), Zone: new("zone-a"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("%s-6f7d9c5b8-%05d", name, i), UID: "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"},
		})
	}
	_, err := e.client.DiscoveryV1().EndpointSlices("shop").Create(e.t.Context(), slice, metav1.CreateOptions{})
	controlplane.Must(e.t, err)
}

// toggle changes the readiness of an endpoint and returns the new version.
func (e *environment) toggle(name string, number int) string {
	e.t.Helper()
	slices := e.client.DiscoveryV1().EndpointSlices("shop")
	slice, err := slices.Get(e.t.Context(), name, metav1.GetOptions{})
	controlplane.Must(e.t, err)
	endpoint := &slice.Endpoints[number%len(slice.Endpoints)]
	endpoint.Conditions.Ready = new(!*endpoint.Conditions.Ready)
	slice, err = slices.Update(e.t.Context(), slice, metav1.UpdateOptions{})
	controlplane.Must(e.t, err)
	return slice.ResourceVersion
}

// counted returns a configuration that counts the bytes from the API server.
func counted(config *rest.Config, sent *atomic.Int64) *rest.Config {
	config = rest.CopyConfig(config)
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return countingConn{connection, sent}, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType
	return config
}

type countingConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.sent.Add(int64(n))
	return n, err
}

// relayServer is a relay at a URL. It compares only the token: authentication is tested in package liveapi.
type relayServer struct {
	http *httptest.Server
	// sent counts bytes from the API server, told bytes to agents before TLS.
	sent, told atomic.Int64
	stop       context.CancelFunc
	done       chan struct{}
}

// relayAt starts a relay and writes its ca.crt to a directory.
func (e *environment) relayAt(address, directory string) *relayServer {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.t.Context()))
	r := &relayServer{stop: cancel, done: make(chan struct{})}
	log := &server.Log{}
	listener, err := net.Listen("tcp", address)
	controlplane.Must(e.t, err)
	r.http = httptest.NewUnstartedServer(r.counting(server.NewHandler(ctx, log, logr.Discard())))
	controlplane.Must(e.t, r.http.Listener.Close())
	r.http.Listener = listener
	r.http.StartTLS()
	go func() {
		defer close(r.done)
		_ = server.Copy(ctx, counted(e.api.Admin(), &r.sent), log, logr.Discard())
	}()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.http.Certificate().Raw})
	controlplane.Must(e.t, os.WriteFile(filepath.Join(directory, caFile), text, 0o600))
	controlplane.Eventually(e.t, patience, func(context.Context) error { return log.Ready(time.Time{}) })
	e.t.Cleanup(r.end)
	return r
}

func (r *relayServer) counting(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.Header.Get("Authorization") != "Bearer "+relayToken {
			http.Error(response, "invalid relay token", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(countingWriter{response, &r.told}, request)
	})
}

type countingWriter struct {
	http.ResponseWriter
	written *atomic.Int64
}

func (w countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w countingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.written.Add(int64(n))
	return n, err
}

func (r *relayServer) end() {
	r.stop()
	<-r.done
	r.http.CloseClientConnections()
	r.http.Close()
}

type agent struct {
	client   *Client
	informer cache.SharedIndexInformer
	sent     atomic.Int64
	mu       sync.Mutex
	said     strings.Builder
	stop     context.CancelFunc
}

func (e *environment) agent(address, directory string) *agent {
	e.t.Helper()
	a := &agent{}
	config := counted(e.api.Admin(), &a.sent)
	logger := funcr.New(func(_, text string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.said.WriteString(text + "\n")
	}, funcr.Options{})
	token := filepath.Join(e.t.TempDir(), "token")
	controlplane.Must(e.t, os.WriteFile(token, []byte(relayToken), 0o600))
	client, err := NewClient("https://"+address, directory, token, "agent", logger)
	controlplane.Must(e.t, err)
	client.fallback, a.client = time.Second, client
	clients, err := kubernetes.NewForConfig(config)
	controlplane.Must(e.t, err)
	listed := cache.NewFilteredListWatchFromClient(clients.DiscoveryV1().RESTClient(), "endpointslices",
		metav1.NamespaceAll, func(*metav1.ListOptions) {})
	slim := func(slice *discoveryv1.EndpointSlice) { *slice = *relay.Slim(slice) }
	a.informer = cache.NewSharedIndexInformer(NewListWatch(client, listed, slim), &discoveryv1.EndpointSlice{}, 0, cache.Indexers{})
	ctx, cancel := context.WithCancel(e.t.Context())
	a.stop = cancel
	e.t.Cleanup(cancel)
	go a.informer.RunWithContext(ctx)
	return a
}

// says returns the agent's log.
func (a *agent) says() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said.String()
}

// awaitEqual waits until each agent has the API server's content.
func (e *environment) awaitEqual(agents ...*agent) {
	e.t.Helper()
	controlplane.Eventually(e.t, patience, func(ctx context.Context) error {
		list, err := e.client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i, a := range agents {
			if count := len(a.informer.GetStore().List()); count != len(list.Items) {
				return fmt.Errorf("agent %d has %d slices, want %d", i, count, len(list.Items))
			}
			for j := range list.Items {
				want := relay.Slim(&list.Items[j])
				got, found, err := a.informer.GetStore().GetByKey(want.Namespace + "/" + want.Name)
				if err != nil {
					return err
				}
				if !found || !equality.Semantic.DeepEqual(got, want) {
					return fmt.Errorf("agent %d has %v, want %v", i, got, want)
				}
			}
		}
		return nil
	})
}

// Agents stay up to date through a relay, without one, and again with one, across restarts of both servers.
func TestRelay(t *testing.T) {
	e := newEnvironment(t)
	directory, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(t))
	for i := range 20 {
		e.create(fmt.Sprintf("web-%d", i), 50)
	}
	first := e.relayAt(address, directory)
	by := e.agent(address, directory)
	e.awaitEqual(by)
	e.toggle("web-3", 7)
	e.create("late", 1)
	controlplane.Must(t, e.client.DiscoveryV1().EndpointSlices("shop").Delete(t.Context(), "web-4", metav1.DeleteOptions{}))
	e.awaitEqual(by)
	if sent := by.sent.Load(); sent != 0 {
		t.Errorf("the API server sent %d bytes to an agent with a relay", sent)
	}

	// Without a relay, the watch resumes at the API server.
	first.end()
	e.toggle("web-5", 8)
	e.awaitEqual(by)
	if said := by.says(); !strings.Contains(said, "No response from a relay") {
		t.Errorf("the agent does not report its use of the API server: %s", said)
	}

	second := e.relayAt(address, directory)
	controlplane.Eventually(t, patience, func(context.Context) error {
		if !by.client.Connected() {
			return fmt.Errorf("the agent does not use a relay: %s", by.says())
		}
		return nil
	})
	// A relay restarts its watch when the API server restarts, without ending its streams.
	controlplane.Must(t, e.api.Kill())
	controlplane.Must(t, e.api.Restart(t))
	e.toggle("web-6", 9)
	e.awaitEqual(by)
	before := by.sent.Load()
	for i := range 10 {
		e.toggle("web-7", i)
	}
	e.awaitEqual(by)
	if sent := by.sent.Load(); sent != before || second.sent.Load() == 0 {
		t.Errorf("the API server sent %d bytes to the agent, %d to the relay", sent-before, second.sent.Load())
	}
}

// A relay without an API server ends its streams, so that agents use another one.
func TestRelayIsCutOff(t *testing.T) {
	log := &server.Log{}
	controlplane.Must(t, log.Replace(nil, "10"))
	log.Connected(false, time.Now().Add(-time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := httptest.NewServer(server.NewHandler(ctx, log, logr.Discard()))
	defer served.Close()
	response, err := http.Get(served.URL + relay.PathEndpointSlices + "?" + relay.Request{Snapshot: true}.Values().Encode())
	controlplane.Must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	controlplane.Must(t, err)
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("disconnected relay: status %s: %s", response.Status, body)
	}
}
