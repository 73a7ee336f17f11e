// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// server is an API server with an LBNodeReport, a delayed watch and at most one LBNode.
type server struct {
	mu      sync.Mutex
	stored  *millracev1beta1.LBNodeReport
	seen    *millracev1beta1.LBNodeReport
	lbNode  *millracev1beta1.LBNode
	lagging bool
	err     error
	writes  []time.Time
	// identities are the written statuses of the LBNode.
	identities []millracev1beta1.LBNodeStatus
	// attempts includes failed writes.
	attempts int
}

func (s *server) put(report *millracev1beta1.LBNodeReport) {
	version := 1
	if s.stored != nil {
		version, _ = strconv.Atoi(s.stored.ResourceVersion)
		version++
	}
	s.stored = report.DeepCopy()
	s.stored.ResourceVersion = strconv.Itoa(version)
	if !s.lagging {
		s.seen = s.stored
	}
}

func (s *server) observed() *millracev1beta1.LBNodeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func (s *server) update(_ context.Context, report *millracev1beta1.LBNodeReport) (*millracev1beta1.LBNodeReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	if s.err != nil {
		return nil, s.err
	}
	if report.ResourceVersion != s.stored.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "lbnodereports"}, report.Name, errors.New("old"))
	}
	s.put(report)
	s.writes = append(s.writes, time.Now())
	return s.stored.DeepCopy(), nil
}

func (s *server) target() Target[*millracev1beta1.LBNode] {
	return Target[*millracev1beta1.LBNode]{
		Observed: func() *millracev1beta1.LBNode {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.lbNode
		},
		Update: func(_ context.Context, lbNode *millracev1beta1.LBNode) (*millracev1beta1.LBNode, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lbNode = lbNode
			s.identities = append(s.identities, lbNode.Status)
			return lbNode, nil
		},
	}
}

// with runs a test with a Writer and synctest's clock.
func with(t *testing.T, test func(t *testing.T, s *server, w *Writer)) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		s.put(&millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "1"}})
		report := Target[*millracev1beta1.LBNodeReport]{Observed: s.observed, Update: s.update}
		w := NewWriter("now", s.target(), report, logr.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		test(t, s, w)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func (s *server) expect(t *testing.T, what string, writes int, version string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.writes) != writes || s.stored.Status.Version != version {
		t.Errorf("%s: %d writes, version %q; want %d, %q", what, len(s.writes), s.stored.Status.Version, writes, version)
	}
}

func version(version string) Observation {
	o := good()
	o.Version = version
	return o
}

func TestWriterCoalesces(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		w.Set(version("v1"))
		synctest.Wait()
		s.expect(t, "the first", 1, "v1")
		for range 100 {
			w.Set(version("v2"))
			w.Set(version("v3"))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(interval)
		s.expect(t, "a burst of a second", 2, "v3")
		w.Set(version("v3"))
		time.Sleep(time.Hour)
		s.expect(t, "nothing new", 2, "v3")
		s.mu.Lock()
		defer s.mu.Unlock()
		if between := s.writes[1].Sub(s.writes[0]); between < interval {
			t.Errorf("%s between two writes, want at least %s", between, interval)
		}
	})
}

func TestWriterIgnoresOwnWrite(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		s.mu.Lock()
		s.lagging = true
		s.mu.Unlock()
		w.Set(version("v1"))
		time.Sleep(time.Minute)
		w.Set(version("v1"))
		time.Sleep(time.Minute)
		s.expect(t, "the same again", 1, "v1")
		w.Set(version("v2"))
		time.Sleep(time.Minute)
		s.expect(t, "a change", 2, "v2")
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.attempts != 2 {
			t.Errorf("%d attempts, want 2", s.attempts)
		}
	})
}

func TestWriterRetries(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		s.mu.Lock()
		s.err = errors.New("API server down")
		s.mu.Unlock()
		w.Set(version("v1"))
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		// 1+2+4+8+16 s, then every 30 s plus the interval.
		if s.attempts < 10 || s.attempts > 30 {
			t.Errorf("%d attempts in 10 minutes, want 10 to 30", s.attempts)
		}
		s.err = nil
		s.mu.Unlock()
		time.Sleep(maxRetry + 2*interval)
		s.expect(t, "after the API server is back", 1, "v1")
	})
}

func TestWriterWaitsForReport(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		s.mu.Lock()
		s.seen = nil
		s.mu.Unlock()
		w.Set(version("v1"))
		time.Sleep(time.Minute)
		s.expect(t, "no report", 0, "")
		s.mu.Lock()
		s.put(&millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "2"}})
		s.mu.Unlock()
		w.Set(version("v1"))
		time.Sleep(time.Minute)
		s.expect(t, "report created", 1, "v1")
	})
}

func TestWriterConflict(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		s.mu.Lock()
		old := s.stored
		s.put(old)
		s.seen = old
		newer := s.stored
		s.mu.Unlock()
		w.Set(version("v1"))
		time.Sleep(5 * interval)
		s.expect(t, "old report", 0, "")
		s.mu.Lock()
		s.seen = newer
		s.mu.Unlock()
		time.Sleep(2 * interval)
		s.expect(t, "newer report", 1, "v1")
	})
}

func TestWriterIdentity(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		failing := good()
		failing.ProgramError, failing.Forwards = errors.New("no memory"), false
		s.mu.Lock()
		s.lbNode = &millracev1beta1.LBNode{Status: millracev1beta1.LBNodeStatus{BootID: "before", ServingBootID: "before"}}
		s.mu.Unlock()
		for _, observation := range []Observation{failing, failing, good(), failing, good()} {
			w.Set(observation)
			time.Sleep(time.Minute)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		want := []millracev1beta1.LBNodeStatus{{BootID: "now", ServingBootID: "before"}, {BootID: "now", ServingBootID: "now"}}
		if !reflect.DeepEqual(s.identities, want) {
			t.Errorf("written identities = %+v, want %+v", s.identities, want)
		}
	})
}

// The agent replaces a status that the operator wrote while the Node was not ready.
func TestWriterSignaled(t *testing.T) {
	with(t, func(t *testing.T, s *server, w *Writer) {
		w.Set(version("v1"))
		time.Sleep(time.Minute)
		s.mu.Lock()
		report := s.stored.DeepCopy()
		meta.SetStatusCondition(&report.Status.Conditions, metav1.Condition{
			Type: millracev1beta1.ConditionReady, Status: metav1.ConditionUnknown, Reason: millracev1beta1.ReasonNodeNotReady,
		})
		notReady := metav1.Condition{
			Type: millracev1beta1.ConditionNodeReady, Status: metav1.ConditionUnknown, Reason: millracev1beta1.ReasonNodeNotReady,
		}
		meta.SetStatusCondition(&report.Status.Conditions, notReady)
		s.put(report)
		s.mu.Unlock()
		w.Wake()
		time.Sleep(time.Minute)
		s.expect(t, "woken", 2, "v1")
		s.mu.Lock()
		defer s.mu.Unlock()
		if !meta.IsStatusConditionTrue(s.stored.Status.Conditions, millracev1beta1.ConditionReady) ||
			meta.FindStatusCondition(s.stored.Status.Conditions, millracev1beta1.ConditionNodeReady) == nil {
			t.Errorf("conditions = %+v", s.stored.Status.Conditions)
		}
	})
}
