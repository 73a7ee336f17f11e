// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// apiServer serves lists and watches of a Source's resources.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex
	version int
	// log contains all events, starting with version 1.
	log      []logged
	objects  map[string][]map[string]any
	watchers map[string]map[chan []byte]bool
	// missing is a resource unknown to the server.
	missing string
	// forbidden is a resource that the client must not read.
	forbidden string
	down      bool
	// busy blocks new requests until it is closed; nil if requests are served.
	busy chan struct{}
	// selectors are the field selectors of the last lists by resource.
	selectors map[string]string
}

type logged struct {
	resource string
	text     []byte
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		objects:   map[string][]map[string]any{},
		watchers:  map[string]map[chan []byte]bool{},
		selectors: map[string]string{},
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	group, resource := path.Split(r.URL.Path)
	if before, namespace, ok := strings.Cut(group, "namespaces/"); ok {
		group, resource = before, namespace+resource
	}
	query := r.URL.Query()
	s.mu.Lock()
	if busy := s.busy; busy != nil {
		s.mu.Unlock()
		select {
		case <-busy:
		case <-r.Context().Done():
		}
		s.mu.Lock()
	}
	switch {
	case s.down:
		s.mu.Unlock()
		fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case resource == s.missing:
		s.mu.Unlock()
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case resource == s.forbidden:
		s.mu.Unlock()
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case query.Get("sendInitialEvents") == "true":
		// Like API servers without streaming lists; clients then list.
		s.mu.Unlock()
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") == "true":
		events := make(chan []byte, 1000)
		since, _ := strconv.Atoi(query.Get("resourceVersion"))
		for _, event := range s.log[min(since, len(s.log)):] {
			if event.resource == resource {
				events <- event.text
			}
		}
		if s.watchers[resource] == nil {
			s.watchers[resource] = map[chan []byte]bool{}
		}
		s.watchers[resource][events] = true
		s.mu.Unlock()
		stream(r.Context(), w, events)
	default:
		s.selectors[resource] = query.Get("fieldSelector") + query.Get("labelSelector")
		list := map[string]any{
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)},
			"items":    append([]map[string]any{}, s.objects[resource]...),
		}
		list["apiVersion"] = strings.Trim(strings.TrimPrefix(strings.TrimPrefix(group, "/apis/"), "/api/"), "/")
		list["kind"] = kinds[resource] + "List"
		s.mu.Unlock()
		w.Header().Set("Content-Type", jsonType)
		_ = json.NewEncoder(w).Encode(list)
	}
}

var kinds = map[string]string{
	"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node", "vips": "VIP", "vippools": "VIPPool",
	"lbnodes": "LBNode", "lbnodereports": "LBNodeReport", "lbpeers": "LBPeer", "vipadvertisements": "VIPAdvertisement",
	"viproutes": "VIPRoute", passwords: "Secret", tunnelKeys: "Secret",
}

func stream(ctx context.Context, w http.ResponseWriter, events <-chan []byte) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			_, _ = w.Write(event)
			w.(http.Flusher).Flush()
		}
	}
}

// send stores an object and notifies the watches.
func (s *apiServer) send(t *testing.T, event, resource string, object metav1.Object) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	object.SetResourceVersion(fmt.Sprint(s.version))
	gv := "v1"
	switch resource {
	case "endpointslices":
		gv = discoveryv1.SchemeGroupVersion.String()
	case "services", "nodes", passwords, tunnelKeys:
	default:
		gv = millracev1beta1.GroupVersion.String()
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := json.Unmarshal(text, &content); err != nil {
		t.Fatal(err)
	}
	content["apiVersion"], content["kind"] = gv, kinds[resource]
	switch event {
	case "ADDED":
		s.objects[resource] = append(s.objects[resource], content)
	case "DELETED":
		s.objects[resource] = slices.DeleteFunc(s.objects[resource], func(other map[string]any) bool {
			return nameOf(other) == nameOf(content)
		})
	}
	text, err = json.Marshal(map[string]any{"type": event, "object": content})
	if err != nil {
		t.Fatal(err)
	}
	s.log = append(s.log, logged{resource, text})
	for events := range s.watchers[resource] {
		events <- text
	}
}

// nameOf returns the namespace and the name of an object.
func nameOf(object map[string]any) [2]any {
	meta, _ := object["metadata"].(map[string]any)
	return [2]any{meta["namespace"], meta["name"]}
}

func (s *apiServer) start(t *testing.T) *Source {
	t.Helper()
	clients, err := NewClientsForConfig(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return run(t, clients)
}
