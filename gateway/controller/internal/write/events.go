// SPDX-License-Identifier: Apache-2.0

package write

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/route"
)

// Bounds of what is told.
const (
	// maxEvents of one pass: what is left comes with one of the next.
	maxEvents     = 50
	pauseOfEvents = 10 * time.Second
	// maxNote is the longest note of an event, in bytes (events.k8s.io/v1).
	maxNote = 1024
)

// told are the problems that were told and still are there.
type told map[route.Problem]bool

// tell makes an event of each problem that is new. Ingresses have no conditions: events are
// the one place where people look.
// found are problems that were not compiled, about what was compiled or others.
func (w *Writer) tell(compiled *Compiled, found []route.Problem, others map[route.Object]client.Object) {
	regarding := regardingOf(compiled.Objects)
	maps.Copy(regarding, others)
	next, left, isMore := told{}, maxEvents, false
	for _, problem := range slices.Concat(compiled.Result.Problems, found) {
		object := regarding[problem.Object]
		switch {
		case object == nil:
			continue
		case w.told[problem]:
		case left == 0:
			isMore = true
			continue
		default:
			left--
			w.Recorder.Eventf(object, nil, corev1.EventTypeWarning, problem.Reason, "Compile", "%s", shorten(problem.Message))
		}
		next[problem] = true
	}
	w.told = next
	if isMore {
		time.AfterFunc(pauseOfEvents, w.Touch)
	}
}

// regardingOf finds the objects that problems are about.
func regardingOf(objects *route.Objects) map[route.Object]client.Object {
	found := map[route.Object]client.Object{}
	add := func(kind string, object client.Object) {
		if object.GetDeletionTimestamp().IsZero() && object.GetUID() != types.UID("") {
			found[route.Object{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = object
		}
	}
	for _, ingress := range objects.Ingresses {
		add("Ingress", ingress)
	}
	for _, class := range objects.IngressClasses {
		add("IngressClass", class)
	}
	for _, parameters := range objects.ConfigMaps {
		add("ConfigMap", parameters)
	}
	for _, gateway := range objects.Gateways {
		add("Gateway", gateway)
	}
	return found
}

// shorten cuts a message to what an event takes, between characters.
func shorten(message string) string {
	if len(message) <= maxNote {
		return message
	}
	return strings.ToValidUTF8(message[:maxNote-4], "") + " ..."
}
