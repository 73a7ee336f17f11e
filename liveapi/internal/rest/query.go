// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/liveapi/internal/collect"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

// AddFields registers the field selectors of flows and drops.
func AddFields(scheme *runtime.Scheme) error {
	for _, kind := range []string{"Flow", "Drop"} {
		err := scheme.AddFieldLabelConversionFunc(livev1alpha1.GroupVersion.WithKind(kind), func(label, value string) (string, string, error) {
			if slices.Contains([]string{livev1alpha1.FieldService, livev1alpha1.FieldClient}, label) {
				return label, value, nil
			}
			return "", "", fmt.Errorf("%q is not a supported field: must be %s or %s", label, livev1alpha1.FieldService, livev1alpha1.FieldClient)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// queryOf returns the query of list options. It returns an error unless they select one Service.
func queryOf(ctx context.Context, resource string, options *internalversion.ListOptions) (collect.Query, error) {
	query := collect.Query{Service: store.Name{Namespace: request.NamespaceValue(ctx)}, Limit: live.MaxLimit}
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	if options.Limit > 0 && options.Limit < live.MaxLimit {
		query.Limit = int(options.Limit)
	}
	if options.LabelSelector != nil {
		query.Service.Name, _ = options.LabelSelector.RequiresExactMatch(livev1alpha1.LabelService)
	}
	if err := readFields(&query, resource, options.FieldSelector); err != nil {
		return query, err
	}
	if query.Service.Name == "" || query.Service.Namespace == "" {
		return query, apierrors.NewBadRequest(fmt.Sprintf(
			"%s are listed for one Service: specify its namespace, and --field-selector %s=NAME", resource, livev1alpha1.FieldService))
	}
	return query, nil
}

func readFields(query *collect.Query, resource string, selector fields.Selector) error {
	if selector == nil {
		return nil
	}
	for _, requirement := range selector.Requirements() {
		if requirement.Operator != selection.Equals && requirement.Operator != selection.DoubleEquals {
			return apierrors.NewBadRequest(fmt.Sprintf("%s: %s only supports the operator =", resource, requirement.Field))
		}
		if requirement.Field == livev1alpha1.FieldService {
			query.Service.Name = requirement.Value
			continue
		}
		query.Client = requirement.Value
		_, addressError := netip.ParseAddr(query.Client)
		if _, prefixError := netip.ParsePrefix(query.Client); addressError != nil && prefixError != nil {
			return apierrors.NewBadRequest(fmt.Sprintf(
				"%s: %s=%s is neither an address nor a prefix such as 192.0.2.0/24", resource, livev1alpha1.FieldClient, query.Client))
		}
	}
	return nil
}

// none reports whether a label selector matches no flow or drop of a Service.
func none(options *internalversion.ListOptions, service string) bool {
	return options != nil && options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set{livev1alpha1.LabelService: service})
}

func warnTruncated(ctx context.Context, resource string, count int) {
	warning.AddWarning(ctx, "", fmt.Sprintf("there are more %s than these %d: restrict them with --field-selector %s=ADDRESS or PREFIX",
		resource, count, livev1alpha1.FieldClient))
}

func (s *Sources) known(ctx context.Context, name store.Name) error {
	_, _, ok, err := s.Cluster.Service(ctx, name)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name.Name)
	}
	return nil
}

func objectName(parts ...string) string {
	return strings.ToLower(strings.NewReplacer(":", "-", "[", "", "]", "", "%", "-", "/", "-").Replace(strings.Join(parts, "-")))
}
