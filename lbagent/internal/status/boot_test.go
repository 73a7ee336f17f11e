// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/source"
)

func TestServes(t *testing.T) {
	// A port fails to be written, permanently.
	failing := good()
	failing.ProgramError = errors.New("map is full")
	unwritten := good()
	unwritten.Forwards = false
	detached := good()
	detached.Interfaces = nil
	for name, test := range map[string]struct {
		observation Observation
		want        bool
	}{
		"before the first pass": {Observation{}, false},
		"good":                  {good(), true},
		"one failed write":      {failing, true},
		"not programmed":        {unwritten, false},
		"not attached":          {detached, false},
	} {
		if got := test.observation.serves(); got != test.want {
			t.Errorf("%s: serves = %t, want %t", name, got, test.want)
		}
	}
}

// A node remains in service in its current boot regardless of later failures.
func TestIdentify(t *testing.T) {
	type status = millracev1beta1.LBNodeStatus
	in := func(boot, serving string) status { return status{BootID: boot, ServingBootID: serving} }
	for name, test := range map[string]struct {
		was    status
		serves bool
		want   status
	}{
		"new node starts":                      {status{}, false, status{}},
		"new node serves":                      {status{}, true, in("now", "now")},
		"node rebooted":                        {in("before", "before"), false, in("now", "before")},
		"node rebooted again before it served": {in("before", "long ago"), false, in("now", "long ago")},
		"node serves again":                    {in("now", "before"), true, in("now", "now")},
		"agent restarted":                      {in("now", "now"), false, in("now", "now")},
		"agent restarted before it served":     {in("now", "before"), false, in("now", "before")},
	} {
		t.Run(name, func(t *testing.T) {
			got := identify(test.was, "now", test.serves, nil)
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("identify(%+v) = %+v, want %+v", test.was, got, test.want)
			}
			if again := identify(got, "now", test.serves, nil); !reflect.DeepEqual(again, got) {
				t.Errorf("identify is not idempotent: %+v, then %+v", got, again)
			}
		})
	}
}

func TestIdentifyReach(t *testing.T) {
	in := millracev1beta1.LBNodeStatus{BootID: "now", ServingBootID: "now"}
	was := in
	was.L2 = []millracev1beta1.L2Reach{{Advertisement: "lab", Networks: []string{"198.51.100.0/24"}}}
	unknown := Observation{}
	if got := identify(was, "now", false, &unknown); !reflect.DeepEqual(got, was) {
		t.Errorf("agent without state: %+v", got)
	}
	known := Observation{L2Known: true}
	if got := identify(was, "now", true, &known); got.L2 != nil {
		t.Errorf("agent without links: %+v", got)
	}
	known.L2 = was.L2
	if got := identify(in, "now", true, &known); !reflect.DeepEqual(got, was) {
		t.Errorf("agent with links: %+v", got)
	}
}

func TestBootID(t *testing.T) {
	got, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(bootIDFile)
	if err != nil {
		t.Fatal(err)
	}
	if got == "" || got != strings.TrimSpace(string(content)) {
		t.Errorf("boot id = %q, kernel file contains %q", got, content)
	}
}

// lbNodes is an API server with at most one LBNode that rejects the first request.
type lbNodes struct {
	*httptest.Server
	lbNode *millracev1beta1.LBNode

	mu       sync.Mutex
	requests []string
}

func newLBNodes(t *testing.T, lbNode *millracev1beta1.LBNode) *lbNodes {
	s := &lbNodes{lbNode: lbNode}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *lbNodes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/apis/millrace.io/v1beta1/"))
	w.Header().Set("Content-Type", "application/json")
	switch {
	case len(s.requests) == 1:
		http.Error(w, "{}", http.StatusServiceUnavailable)
	case s.lbNode == nil:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(apierrors.NewNotFound(schema.GroupResource{}, "node1").ErrStatus)
	case r.Method == http.MethodPut:
		_ = json.NewDecoder(r.Body).Decode(s.lbNode)
		fallthrough
	default:
		s.lbNode.APIVersion, s.lbNode.Kind = millracev1beta1.GroupVersion.String(), "LBNode"
		_ = json.NewEncoder(w).Encode(s.lbNode)
	}
}

// ReportBoot retries after an initial failure and writes nothing without a change.
func TestReportBoot(t *testing.T) {
	type status = millracev1beta1.LBNodeStatus
	const get, put = "GET lbnodes/node1", "PUT lbnodes/node1/status"
	for name, test := range map[string]struct {
		was  *status
		want *status
		sent []string
	}{
		"booted":              {&status{BootID: "a", ServingBootID: "a"}, &status{BootID: "b", ServingBootID: "a"}, []string{get, get, put}},
		"the agent restarted": {&status{BootID: "b", ServingBootID: "b"}, &status{BootID: "b", ServingBootID: "b"}, []string{get, get}},
		"never served":        {&status{}, &status{}, []string{get, get}},
		"no LBNode yet":       {nil, nil, []string{get, get}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lbNode *millracev1beta1.LBNode
			if test.was != nil {
				lbNode = &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: *test.was}
			}
			s := newLBNodes(t, lbNode)
			clients, err := source.NewClientsForConfig(&rest.Config{Host: s.URL, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ReportBoot(ctx, clients.Millrace, "node1", "b", logr.Discard())
			if test.want != nil && !reflect.DeepEqual(s.lbNode.Status, *test.want) {
				t.Errorf("the status is %+v, want %+v", s.lbNode.Status, *test.want)
			}
			if !slices.Equal(s.requests, test.sent) {
				t.Errorf("requests = %v, want %v", s.requests, test.sent)
			}
		})
	}
}
