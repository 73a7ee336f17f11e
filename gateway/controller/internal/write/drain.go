// SPDX-License-Identifier: Apache-2.0

package write

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route"
)

// annotationDraining is, on a VIPRoute, since when each of its backends drains, as JSON.
const annotationDraining = "millrace.io/draining"

const (
	// defaultDrain is how long a backend that has left its route keeps its connections.
	defaultDrain = time.Hour
	// maxBackends is the limit of a VIPRoute's port.
	maxBackends = 64
)

// draining is since when backends drain: those that have left the route.
type draining map[route.ServicePort]time.Time

// drain leaves the backends in a VIPRoute that are in the live one and no longer wanted. They
// have the weight zero: agents send them no new connection and keep those that they have. A
// backend drains until it has no endpoints, or for the period. The earliest end of one is
// returned, zero where none drains.
func drain(wanted, live *millracev1beta1.VIPRoute, serves func(route.ServicePort) bool, period time.Duration, now time.Time) (draining, time.Time) {
	since, next := draining{}, time.Time{}
	if live == nil || len(wanted.Spec.Ports) != 1 || len(live.Spec.Ports) != 1 {
		return since, next
	}
	port := &wanted.Spec.Ports[0]
	isWanted := map[route.ServicePort]bool{}
	for _, backend := range port.Backends {
		isWanted[servicePort(backend)] = true
	}
	before := readDraining(live)
	for _, backend := range live.Spec.Ports[0].Backends {
		at := servicePort(backend)
		if backend.Invalid || isWanted[at] {
			continue
		}
		began, known := before[at]
		if !known || began.After(now) {
			// Fractions are not needed, and are dull to read in the annotation.
			began = now.Truncate(time.Second)
		}
		if end := began.Add(period); end.After(now) && serves(at) {
			since[at] = began
			if next.IsZero() || end.Before(next) {
				next = end
			}
		}
	}
	since.bound(maxBackends - len(port.Backends))
	port.Backends = append(port.Backends, since.backends()...)
	return since, next
}

// bound forgets those that drain for longest, where there are too many.
func (d draining) bound(most int) {
	for at := range slices.Values(d.oldestFirst()) {
		if len(d) <= most {
			return
		}
		delete(d, at)
	}
}

func (d draining) oldestFirst() []route.ServicePort {
	return slices.SortedFunc(maps.Keys(d), func(a, b route.ServicePort) int {
		return cmp.Or(d[a].Compare(d[b]), compareServicePorts(a, b))
	})
}

func (d draining) backends() []millracev1beta1.VIPRouteBackend {
	var found []millracev1beta1.VIPRouteBackend
	for _, at := range slices.SortedFunc(maps.Keys(d), compareServicePorts) {
		found = append(found, millracev1beta1.VIPRouteBackend{Namespace: at.Namespace, Name: at.Name, Port: at.Port})
	}
	return found
}

func compareServicePorts(a, b route.ServicePort) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
}

func servicePort(of millracev1beta1.VIPRouteBackend) route.ServicePort {
	return route.ServicePort{Namespace: of.Namespace, Name: of.Name, Port: of.Port}
}

// drainingSince is one entry of the annotation.
type drainingSince struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Port      int32     `json:"port"`
	Since     time.Time `json:"since"`
}

// readDraining reads the annotation. What cannot be read drains from now on.
func readDraining(of *millracev1beta1.VIPRoute) draining {
	var entries []drainingSince
	if err := json.Unmarshal([]byte(of.Annotations[annotationDraining]), &entries); err != nil {
		return draining{}
	}
	found := draining{}
	for _, entry := range entries {
		found[route.ServicePort{Namespace: entry.Namespace, Name: entry.Name, Port: entry.Port}] = entry.Since
	}
	return found
}

func (d draining) write(to *millracev1beta1.VIPRoute) error {
	annotations := maps.Clone(to.Annotations)
	delete(annotations, annotationDraining)
	to.Annotations = annotations
	if len(d) == 0 {
		return nil
	}
	var entries []drainingSince
	for _, at := range slices.SortedFunc(maps.Keys(d), compareServicePorts) {
		entries = append(entries, drainingSince{at.Namespace, at.Name, at.Port, d[at].UTC()})
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return fmt.Errorf("write what drains: %w", err)
	}
	annotations[annotationDraining] = string(text)
	return nil
}

// drains is what drains after one pass.
type drains struct {
	services map[types.NamespacedName]bool
	next     time.Time
}

// Follows reports whether the writer wants to know of the endpoints of a Service: a backend that
// drains is a port of it, or a listener of layer 4 leads to it.
func (w *Writer) Follows(service types.NamespacedName) bool {
	services := w.followed.Load()
	return services != nil && (*services)[service]
}

// keepDraining lets backends that have left a VIPRoute drain.
func (w *Writer) keepDraining(ctx context.Context, wanted infrastructure.Object, live any, period time.Duration, found *drains) error {
	to, ok := wanted.(*millracev1beta1.VIPRoute)
	if !ok {
		return nil
	}
	from, _ := live.(*millracev1beta1.VIPRoute)
	var problems []error
	serves := func(at route.ServicePort) bool {
		has, err := w.HasEndpoints(ctx, at, protocolOf(to))
		if err != nil {
			problems = append(problems, err)
		}
		// Who does not know cuts no connection.
		return has || err != nil
	}
	since, next := drain(to, from, serves, cmp.Or(period, defaultDrain), time.Now())
	for at := range since {
		found.services[types.NamespacedName{Namespace: at.Namespace, Name: at.Name}] = true
	}
	if !next.IsZero() && (found.next.IsZero() || next.Before(found.next)) {
		found.next = next
	}
	return errors.Join(append(problems, since.write(to))...)
}

func protocolOf(of *millracev1beta1.VIPRoute) corev1.Protocol {
	return cmp.Or(of.Spec.Ports[0].Protocol, corev1.ProtocolTCP)
}

// watchDrains looks again when the next backend has drained.
func (w *Writer) watchDrains(found drains) {
	w.followed.Store(&found.services)
	if w.drained != nil {
		w.drained.Stop()
		w.drained = nil
	}
	if !found.next.IsZero() {
		w.drained = time.AfterFunc(time.Until(found.next), w.Touch)
	}
}
