// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// rowsCensus knows, by the LBNodeReports, whether the agents of all nodes know the VIP.spec.minRows
// that the operator gives VIPs. All nodes must have the same node tables, so one that does not
// keeps new VIPs from having it. It enqueues nothing: a VIP keeps what it was created with.
type rowsCensus struct {
	mu sync.Mutex
	// previous are the nodes whose agents are of a version before the field.
	previous sets.Set[string]
}

var _ handler.TypedEventHandler[*millracev1beta1.LBNodeReport, reconcile.Request] = &rowsCensus{}

func newRowsCensus() *rowsCensus { return &rowsCensus{previous: sets.New[string]()} }

// least returns the minRows of a VIP that is created now; zero for the rows that all agents know.
func (c *rowsCensus) least() int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.previous.Len() > 0 {
		return 0
	}
	return millracev1beta1.MinRows
}

// set notes what a report says. An agent that never reported is about to begin, and of this
// version: else the first VIPs of a new cluster would not have the field.
func (c *rowsCensus) set(report *millracev1beta1.LBNodeReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := &report.Status
	if status.Version != "" && (status.MinRows == 0 || status.MinRows > millracev1beta1.MinRows) {
		c.previous.Insert(report.Name)
	} else {
		c.previous.Delete(report.Name)
	}
}

// Create implements handler.TypedEventHandler.
func (c *rowsCensus) Create(_ context.Context, e event.TypedCreateEvent[*millracev1beta1.LBNodeReport], _ queue) {
	c.set(e.Object)
}

// Update implements handler.TypedEventHandler.
func (c *rowsCensus) Update(_ context.Context, e event.TypedUpdateEvent[*millracev1beta1.LBNodeReport], _ queue) {
	c.set(e.ObjectNew)
}

// Delete implements handler.TypedEventHandler.
func (c *rowsCensus) Delete(_ context.Context, e event.TypedDeleteEvent[*millracev1beta1.LBNodeReport], _ queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.previous.Delete(e.Object.Name)
}

// Generic does nothing: no source sends such events.
func (c *rowsCensus) Generic(context.Context, event.TypedGenericEvent[*millracev1beta1.LBNodeReport], queue) {
}
