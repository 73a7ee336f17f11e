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
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// annotationDraining on a VIPRoute lists the draining backends with their start times, as JSON.
const annotationDraining = "millrace.io/draining"

const (
	defaultDrain = time.Hour
	// maxBackends is the API's limit per VIPRoute port.
	maxBackends = 64
)

// drainStarts maps backends removed from a route to the start of their draining.
type drainStarts map[model.ServicePort]time.Time

// drain adds backends of live that are no longer wanted with weight zero: agents keep their connections. A
// backend drains until it has no endpoints or the period ends. The time is the earliest end, or zero.
func drain(wanted, live *millracev1beta1.VIPRoute, serves func(model.ServicePort) bool, period time.Duration, now time.Time) (drainStarts, time.Time) {
	since, next := drainStarts{}, time.Time{}
	if live == nil || len(wanted.Spec.Ports) != 1 || len(live.Spec.Ports) != 1 {
		return since, next
	}
	port := &wanted.Spec.Ports[0]
	isWanted := map[model.ServicePort]bool{}
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
			// Whole seconds keep the annotation readable.
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

// bound drops the longest-draining backends until at most most remain.
func (d drainStarts) bound(most int) {
	for at := range slices.Values(d.oldestFirst()) {
		if len(d) <= most {
			return
		}
		delete(d, at)
	}
}

func (d drainStarts) oldestFirst() []model.ServicePort {
	return slices.SortedFunc(maps.Keys(d), func(a, b model.ServicePort) int {
		return cmp.Or(d[a].Compare(d[b]), compareServicePorts(a, b))
	})
}

func (d drainStarts) backends() []millracev1beta1.VIPRouteBackend {
	var found []millracev1beta1.VIPRouteBackend
	for _, at := range slices.SortedFunc(maps.Keys(d), compareServicePorts) {
		found = append(found, millracev1beta1.VIPRouteBackend{Namespace: at.Namespace, Name: at.Name, Port: at.Port})
	}
	return found
}

func compareServicePorts(a, b model.ServicePort) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
}

func servicePort(of millracev1beta1.VIPRouteBackend) model.ServicePort {
	return model.ServicePort{Namespace: of.Namespace, Name: of.Name, Port: of.Port}
}

type drainingEntry struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Port      int32     `json:"port"`
	Since     time.Time `json:"since"`
}

// readDraining restarts draining if the annotation is invalid.
func readDraining(of *millracev1beta1.VIPRoute) drainStarts {
	var entries []drainingEntry
	if err := json.Unmarshal([]byte(of.Annotations[annotationDraining]), &entries); err != nil {
		return drainStarts{}
	}
	found := drainStarts{}
	for _, entry := range entries {
		found[model.ServicePort{Namespace: entry.Namespace, Name: entry.Name, Port: entry.Port}] = entry.Since
	}
	return found
}

func (d drainStarts) write(to *millracev1beta1.VIPRoute) error {
	annotations := maps.Clone(to.Annotations)
	delete(annotations, annotationDraining)
	to.Annotations = annotations
	if len(d) == 0 {
		return nil
	}
	var entries []drainingEntry
	for _, at := range slices.SortedFunc(maps.Keys(d), compareServicePorts) {
		entries = append(entries, drainingEntry{at.Namespace, at.Name, at.Port, d[at].UTC()})
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return fmt.Errorf("encode the draining backends: %w", err)
	}
	annotations[annotationDraining] = string(text)
	return nil
}

type drainSummary struct {
	services map[types.NamespacedName]bool
	next     time.Time
}

// Follows reports whether a draining backend or a layer-4 listener refers to a Service.
func (w *Writer) Follows(service types.NamespacedName) bool {
	services := w.backendServices.Load()
	return services != nil && (*services)[service]
}

func (w *Writer) keepDraining(ctx context.Context, wanted infrastructure.Object, live any, period time.Duration, found *drainSummary) error {
	to, ok := wanted.(*millracev1beta1.VIPRoute)
	if !ok {
		return nil
	}
	from, _ := live.(*millracev1beta1.VIPRoute)
	var problems []error
	serves := func(at model.ServicePort) bool {
		has, err := w.HasEndpoints(ctx, at, protocolOf(to))
		if err != nil {
			problems = append(problems, err)
		}
		// An error must not cut connections.
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

func (w *Writer) watchDrains(found drainSummary) {
	w.backendServices.Store(&found.services)
	if w.drainTimer != nil {
		w.drainTimer.Stop()
		w.drainTimer = nil
	}
	if !found.next.IsZero() {
		w.drainTimer = time.AfterFunc(time.Until(found.next), w.Touch)
	}
}
