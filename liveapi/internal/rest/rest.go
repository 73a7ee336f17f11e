// SPDX-License-Identifier: Apache-2.0

// Package rest implements the resources of live.millrace.io/v1alpha1, computed on request.
package rest

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/liveapi/internal/cluster"
	"github.com/millrace-lb/millrace/liveapi/internal/collect"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

// Sources provides the data of all resources.
type Sources struct {
	Store     *store.Store
	Cluster   *cluster.Cluster
	Collector *collect.Collector
}

// Storage returns the REST storage of each resource by name.
func Storage(sources Sources) map[string]rest.Storage {
	return map[string]rest.Storage{
		livev1alpha1.ResourceServiceTraffic:   newServiceTraffic(sources),
		livev1alpha1.ResourceVIPAnnouncements: newVIPAnnouncements(sources),
		livev1alpha1.ResourceBGPSessions:      newBGPSessions(sources),
		livev1alpha1.ResourceFlows:            newFlows(sources),
		livev1alpha1.ResourceDrops:            newDrops(sources),
	}
}

// resource implements the methods that all resources have in common.
type resource struct {
	singular   string
	shortNames []string
	namespaced bool
	object     func() runtime.Object
	list       func() runtime.Object
	columns    []metav1.TableColumnDefinition
	// cells returns the row of an object, with one cell per column.
	cells func(object runtime.Object, now time.Time) []any
}

func (r *resource) New() runtime.Object { return r.object() }

func (r *resource) Destroy() {}

func (r *resource) NamespaceScoped() bool { return r.namespaced }

func (r *resource) GetSingularName() string { return r.singular }

func (r *resource) ShortNames() []string { return r.shortNames }

func (r *resource) NewList() runtime.Object { return r.list() }

func (r *resource) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table, now := &metav1.Table{}, time.Now()
	add := func(one runtime.Object) error {
		table.Rows = append(table.Rows, metav1.TableRow{Cells: r.cells(one, now), Object: runtime.RawExtension{Object: one}})
		return nil
	}
	if meta.IsListType(object) {
		if list, err := meta.ListAccessor(object); err == nil {
			table.ResourceVersion = list.GetResourceVersion()
		}
		if err := meta.EachListItem(object, add); err != nil {
			return nil, fmt.Errorf("convert to a table: %w", err)
		}
	} else if err := add(object); err != nil {
		return nil, err
	}
	if tableOptions, ok := options.(*metav1.TableOptions); !ok || !tableOptions.NoHeaders {
		table.ColumnDefinitions = r.columns
	}
	return table, nil
}

// column returns a column of `kubectl get`, and wide one that is shown only with -o wide.
func column(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

func wide(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description, Priority: 1}
}

func nameColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."}
}

// version returns a resource version in milliseconds, because the replicas have no common counter.
func version(now time.Time) string { return strconv.FormatInt(now.UnixMilli(), 10) }

// selected reports whether an object matches the label selector and the field selector of list options.
func selected(options *internalversion.ListOptions, object *metav1.ObjectMeta) bool {
	if options == nil {
		return true
	}
	if options.LabelSelector != nil && !options.LabelSelector.Matches(labelSet(object.Labels)) {
		return false
	}
	return options.FieldSelector == nil || options.FieldSelector.Matches(fields.Set{
		"metadata.name": object.Name, "metadata.namespace": object.Namespace,
	})
}

// labelSet implements labels.Labels without copying the map.
type labelSet map[string]string

func (s labelSet) Has(label string) bool   { _, ok := s[label]; return ok }
func (s labelSet) Get(label string) string { return s[label] }
func (s labelSet) Lookup(label string) (value string, ok bool) {
	value, ok = s[label]
	return value, ok
}

// namesInWarnings limits the number of silent nodes that a warning names.
const namesInWarnings = 10

func warnSilent(ctx context.Context, coverage store.Coverage) {
	if text := partial(coverage); text != "" {
		warning.AddWarning(ctx, "", text)
	}
}

func partial(coverage store.Coverage) string {
	silent := coverage.Silent
	if len(silent) == 0 {
		return ""
	}
	rest := ""
	if more := len(silent) - namesInWarnings; more > 0 {
		silent, rest = silent[:namesInWarnings], fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%d of %d nodes did not answer: %s%s", len(coverage.Silent), coverage.Nodes, strings.Join(silent, ", "), rest)
}

// number formats a rate with at least three digits, and with a unit prefix from 10,000.
func number(value float64) string {
	for _, unit := range []struct {
		prefix string
		size   float64
	}{{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}} {
		if value >= 9.9995*unit.size {
			return short(value/unit.size) + unit.prefix
		}
	}
	return short(value)
}

func short(value float64) string {
	if value >= 99.95 {
		return strconv.FormatFloat(math.Round(value), 'f', 0, 64)
	}
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64)
}

func rounded(value float64) float64 { return math.Round(value*1e3) / 1e3 }

func age(then *metav1.Time, now time.Time) string {
	if then.IsZero() {
		return "<none>"
	}
	return max(now.Sub(then.Time), 0).Round(time.Second).String()
}

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

func groupResource(name string) schema.GroupResource {
	return livev1alpha1.GroupVersion.WithResource(name).GroupResource()
}
