// SPDX-License-Identifier: Apache-2.0

package control

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

const recorderName = "millrace-operator"

// maxNote is the maximum length of an event's note, in bytes (events.k8s.io/v1).
const maxNote = 1024

// readTimeout bounds the read of a namespace before an event.
const readTimeout = 5 * time.Second

// A Recorder truncates long notes and drops events in namespaces that are being deleted.
type Recorder struct {
	events.EventRecorder
	Cached, Live client.Reader
}

var _ events.EventRecorder = Recorder{}

// NewRecorder returns the recorder of a manager.
func NewRecorder(mgr ctrl.Manager) Recorder {
	return Recorder{EventRecorder: mgr.GetEventRecorder(recorderName), Cached: mgr.GetClient(), Live: mgr.GetAPIReader()}
}

// Eventf implements events.EventRecorder.
//
//nolint:revive // the interface has these arguments
func (r Recorder) Eventf(regarding, related runtime.Object, severity, reason, action, note string, arguments ...any) {
	if r.isTerminating(regarding) {
		return
	}
	message := Truncate(fmt.Sprintf(note, arguments...), maxNote)
	r.EventRecorder.Eventf(regarding, related, severity, reason, action, "%s", message)
}

// isTerminating reads past the cache, because an object may be deleted before the event of its namespace.
func (r Recorder) isTerminating(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	if err != nil || accessor.GetNamespace() == "" {
		return false
	}
	reader := r.Cached
	if accessor.GetDeletionTimestamp() != nil {
		reader = r.Live
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	namespace := NamespaceMetadata()
	err = reader.Get(ctx, client.ObjectKey{Name: accessor.GetNamespace()}, namespace)
	return apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil
}
