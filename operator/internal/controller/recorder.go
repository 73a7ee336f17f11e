// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// recorderName is the reportingController of events.
const recorderName = "millrace-operator"

// maxNote is the longest note of an event, in bytes (events.k8s.io/v1).
const maxNote = 1024

// lookTimeout bounds the look at a namespace before an event.
const lookTimeout = 5 * time.Second

// recorder writes events that the API server takes: none is too long, and none
// is for a namespace that is being deleted, where nothing can be created.
type recorder struct {
	events.EventRecorder
	cached, live client.Reader
}

var _ events.EventRecorder = recorder{}

func newRecorder(mgr ctrl.Manager) recorder {
	return recorder{EventRecorder: mgr.GetEventRecorder(recorderName), cached: mgr.GetClient(), live: mgr.GetAPIReader()}
}

// Eventf implements events.EventRecorder.
//
//nolint:revive // the interface has these arguments
func (r recorder) Eventf(regarding, related runtime.Object, severity, reason, action, note string, arguments ...any) {
	if r.isTerminating(regarding) {
		return
	}
	message := truncate(fmt.Sprintf(note, arguments...), maxNote)
	r.EventRecorder.Eventf(regarding, related, severity, reason, action, "%s", message)
}

// isTerminating reports whether the namespace of an object is being deleted. An
// object that is itself being deleted may be the first sign of that, so the API
// server is asked then.
func (r recorder) isTerminating(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	if err != nil || accessor.GetNamespace() == "" {
		return false
	}
	reader := r.cached
	if accessor.GetDeletionTimestamp() != nil {
		reader = r.live
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	namespace := namespaceMetadata()
	err = reader.Get(ctx, client.ObjectKey{Name: accessor.GetNamespace()}, namespace)
	return apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil
}
