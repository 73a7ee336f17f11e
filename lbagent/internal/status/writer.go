// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// +kubebuilder:rbac:groups=millrace.io,resources=lbnodes/status;lbnodereports/status,verbs=update;patch

const (
	interval = time.Second
	// knownDigestInterval is the average time between reports with known digests in clusters of up to 4,000 nodes.
	knownDigestInterval = 40 * time.Second
	// canaryInterval is the average time between reports of changed canaries in clusters of up to 1,000 nodes.
	canaryInterval = 10 * time.Second
	// digestBurst is the number of such reports that may follow each other immediately.
	digestBurst = 4
	// digestMemory is the retention time of written digests.
	digestMemory = 10 * time.Minute
	// spreadRate is the cluster's maximum rate of reports with known digests per second, unless maxSpread
	// is exceeded.
	spreadRate   = 100
	maxSpread    = time.Minute
	maxRetry     = 30 * time.Second
	writeTimeout = 10 * time.Second
)

type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// Update writes the status of an object and returns the written object.
type Update[T object] func(context.Context, T) (T, error)

// Client returns an Update for the API server.
func Client[T object](client rest.Interface, resource string) Update[T] {
	return func(ctx context.Context, object T) (written T, err error) {
		result, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
		err = client.Put().Resource(resource).Name(object.GetName()).SubResource("status").Body(object).Do(ctx).Into(result)
		if err != nil {
			return written, fmt.Errorf("update the status of %s %s: %w", resource, object.GetName(), err)
		}
		return result, nil
	}
}

// Target is an object whose status a Writer maintains.
type Target[T object] struct {
	// Observed returns the cached object or nil. Only the operator creates it.
	Observed func() T
	Update   Update[T]
}

// Writer maintains the statuses of the node's LBNode and LBNodeReport. It writes only differences and coalesces
// observations in quick succession. Changes of only numbers and messages, and alternating states, are limited
// to a burst and then one write per 40 seconds, with jitter.
type Writer struct {
	bootID  string
	lbNode  objectWriter[*millracev1beta1.LBNode]
	report  objectWriter[*millracev1beta1.LBNodeReport]
	history reportHistory
	logger  logr.Logger

	wake chan struct{}
	mu   sync.Mutex
	next *Observation
}

// NewWriter returns a Writer for a node with this boot id.
func NewWriter(
	bootID string, lbNode Target[*millracev1beta1.LBNode], report Target[*millracev1beta1.LBNodeReport], logger logr.Logger,
) *Writer {
	return &Writer{
		bootID: bootID,
		lbNode: objectWriter[*millracev1beta1.LBNode]{Target: lbNode},
		report: objectWriter[*millracev1beta1.LBNodeReport]{Target: report},
		logger: logger,
		wake:   make(chan struct{}, 1),
	}
}

// Set replaces the observation to be written.
func (w *Writer) Set(observation Observation) {
	w.mu.Lock()
	w.next = &observation
	w.mu.Unlock()
	w.Wake()
}

// Wake triggers a comparison, because another writer may have changed the object.
func (w *Writer) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx is done.
func (w *Writer) Run(ctx context.Context) error {
	wait := interval
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		case <-timer.C:
		}
		again, err := w.write(ctx, time.Now())
		switch {
		case err == nil:
			wait = interval
			if again > 0 {
				timer.Reset(again)
			}
		case apierrors.IsConflict(err):
			// The cache is outdated; the watch delivers the new object soon.
			timer.Reset(interval)
		default:
			w.logger.Error(err, "Could not write the status; will retry", "after", wait)
			timer.Reset(wait)
			wait = min(2*wait, maxRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

// write writes the objects that differ from the observation. It returns the delay until a deferred report is
// due, or zero.
func (w *Writer) write(ctx context.Context, now time.Time) (again time.Duration, err error) {
	w.mu.Lock()
	observation := w.next
	w.mu.Unlock()
	if observation == nil {
		return 0, nil
	}
	identity := w.lbNode.write(ctx, func(lbNode *millracev1beta1.LBNode) *millracev1beta1.LBNode {
		status := identify(lbNode.Status, w.bootID, observation.serves(), observation)
		if equality.Semantic.DeepEqual(status, lbNode.Status) {
			return nil
		}
		changed := lbNode.DeepCopy()
		changed.Status = status
		return changed
	})
	w.history.nodes = observation.Nodes
	var tells *millracev1beta1.LBNodeReportStatus
	report := w.report.write(ctx, func(report *millracev1beta1.LBNodeReport) *millracev1beta1.LBNodeReport {
		status := Build(*observation, report, metav1.NewTime(now).Rfc3339Copy())
		if equality.Semantic.DeepEqual(status, report.Status) {
			w.history.settle()
			return nil
		}
		w.history.initialize(&report.Status, now)
		jitter := time.Duration(rand.Float64() * float64(spread(observation.Nodes)))
		if again = w.history.wait(digest(&status), now, jitter); again > 0 {
			return nil
		}
		changed := report.DeepCopy()
		changed.Status, tells = status, &status
		return changed
	})
	if tells != nil && report == nil {
		w.history.add(digest(tells), now)
	}
	return again, errors.Join(identity, report)
}

type objectWriter[T object] struct {
	Target[T]
	written T
}

func (k *objectWriter[T]) write(ctx context.Context, change func(T) T) error {
	var none T
	current := k.current()
	if current == none {
		return nil
	}
	changed := change(current)
	if changed == none {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	written, err := k.Update(ctx, changed)
	if err != nil {
		return err
	}
	k.written = written
	return nil
}

// current returns the newest known object, which is the written one until the watch has caught up.
func (k *objectWriter[T]) current() T {
	var none T
	observed := k.Observed()
	if observed == none || k.written == none || k.written.GetUID() != observed.GetUID() {
		return observed
	}
	order, err := resourceversion.CompareResourceVersion(k.written.GetResourceVersion(), observed.GetResourceVersion())
	if err == nil && order > 0 {
		return k.written
	}
	return observed
}
