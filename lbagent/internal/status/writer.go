// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// +kubebuilder:rbac:groups=millrace.io,resources=lbnodes/status,verbs=update;patch

const (
	// interval is the shortest time between two writes.
	interval = time.Second
	// longestRetry bounds the time between two attempts that fail.
	longestRetry = 30 * time.Second
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
)

// Update replaces the status of an LBNode and returns the object as written.
type Update func(context.Context, *millracev1alpha1.LBNode) (*millracev1alpha1.LBNode, error)

// Client returns an Update through the API server.
func Client(client rest.Interface) Update {
	return func(ctx context.Context, lbNode *millracev1alpha1.LBNode) (*millracev1alpha1.LBNode, error) {
		written := &millracev1alpha1.LBNode{}
		err := client.Put().Resource("lbnodes").Name(lbNode.Name).SubResource("status").Body(lbNode).Do(ctx).Into(written)
		if err != nil {
			return nil, fmt.Errorf("update status of LBNode %s: %w", lbNode.Name, err)
		}
		return written, nil
	}
}

// Writer keeps the status of one LBNode. It writes only what differs from the
// status that the LBNode has, and observations that follow each other closely
// in one write.
type Writer struct {
	observed func() *millracev1alpha1.LBNode
	update   Update
	logger   logr.Logger

	wake chan struct{}
	mu   sync.Mutex
	next *Observation

	// written is the LBNode as the last write left it.
	written *millracev1alpha1.LBNode
}

// NewWriter returns a Writer. observed returns the LBNode as it was last seen,
// or nil; the operator makes the LBNode, the Writer never does.
func NewWriter(observed func() *millracev1alpha1.LBNode, update Update, logger logr.Logger) *Writer {
	return &Writer{observed: observed, update: update, logger: logger, wake: make(chan struct{}, 1)}
}

// Set gives the Writer an observation, in place of an earlier one.
func (w *Writer) Set(observation Observation) {
	w.mu.Lock()
	w.next = &observation
	w.mu.Unlock()
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
		err := w.write(ctx)
		switch {
		case err == nil:
			wait = interval
		case apierrors.IsConflict(err):
			// The LBNode as we last saw it is old; the new one is on its way.
			timer.Reset(interval)
		default:
			w.logger.Error(err, "Status not written; will try again", "after", wait)
			timer.Reset(wait)
			wait = min(2*wait, longestRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

// write writes the observation unless the LBNode tells it already.
func (w *Writer) write(ctx context.Context) error {
	w.mu.Lock()
	observation := w.next
	w.mu.Unlock()
	current := w.current()
	if observation == nil || current == nil {
		return nil
	}
	status := Build(*observation, current, metav1.Now().Rfc3339Copy())
	if equality.Semantic.DeepEqual(status, current.Status) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	lbNode := current.DeepCopy()
	lbNode.Status = status
	written, err := w.update(ctx, lbNode)
	if err != nil {
		return err
	}
	w.written = written
	return nil
}

// current is the newest known LBNode: what a write left is newer than what
// has been seen until the watch has caught up.
func (w *Writer) current() *millracev1alpha1.LBNode {
	observed := w.observed()
	if observed == nil || w.written == nil || w.written.UID != observed.UID {
		return observed
	}
	order, err := resourceversion.CompareResourceVersion(w.written.ResourceVersion, observed.ResourceVersion)
	if err == nil && order > 0 {
		return w.written
	}
	return observed
}
