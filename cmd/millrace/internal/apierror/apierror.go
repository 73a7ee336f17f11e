// SPDX-License-Identifier: Apache-2.0

// Package apierror converts API server errors to one sentence: object, permission, and advice.
package apierror

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Kinds of errors.
var (
	ErrUnreachable  = errors.New("the API server does not answer")
	ErrNotInstalled = errors.New("Millrace is not installed in this cluster")
	ErrForbidden    = errors.New("not allowed")
)

// Request is the context of a request that failed.
type Request struct {
	Host      string
	Namespace string
	// Names returns the names of the objects of a resource; nil: no name is suggested.
	Names func(schema.GroupResource) []string
}

// Explain wraps err with its kind and an explanation.
func Explain(err error, of Request) error {
	var network *url.Error
	var status apierrors.APIStatus
	switch denied, isDenied := parseDenied(err); {
	case errors.Is(err, context.Canceled):
		return err
	case isDenied:
		return fmt.Errorf("%w: %s", ErrForbidden, denied.sentence(of.Namespace))
	case apierrors.IsNotFound(err) && errors.As(err, &status):
		return notFound(err, status.Status().Details, of)
	case apierrors.IsForbidden(err):
		// The request was rejected by an admission policy, not by RBAC.
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: %s does not accept the credentials of this context: %w", ErrForbidden, of.Host, err)
	case errors.As(err, &network):
		return fmt.Errorf("%w at %s: %w; see --kubeconfig and --context", ErrUnreachable, of.Host, network.Err)
	default:
		return fmt.Errorf("request to %s: %w", of.Host, err)
	}
}

// notFound distinguishes a missing object from a missing resource, whose details lack the name.
func notFound(err error, details *metav1.StatusDetails, of Request) error {
	switch {
	case details == nil || details.Group == millracev1beta1.GroupVersion.Group && !isNamed(details):
		return fmt.Errorf("%w: %s has no resource of millrace.io/v1beta1; install it with: kubectl apply --server-side -k config/default",
			ErrNotInstalled, of.Host)
	case !isNamed(details):
		return fmt.Errorf("%s has no resource %s: %w", of.Host, schema.GroupResource{Group: details.Group, Resource: details.Kind}, err)
	}
	resource := schema.GroupResource{Group: details.Group, Resource: details.Kind}
	missing := &Missing{Kind: kindOf(resource), Name: details.Name}
	if of.Names != nil {
		missing.Names = of.Names(resource)
	}
	return missing
}

func isNamed(details *metav1.StatusDetails) bool {
	return details.Name != "" && !slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// deniedText matches RBAC's message, which errors of streams contain as plain text only.
var deniedText = regexp.MustCompile(`(?:"([^"]*)" is forbidden: )?User "([^"]*)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"` +
	`(?: in the namespace "([^"]*)")?`)

// denied is a request that RBAC rejects. namespace is empty at cluster scope.
type denied struct{ name, user, verb, resource, group, namespace string }

func parseDenied(err error) (denied, bool) {
	if err == nil {
		return denied{}, false
	}
	found := deniedText.FindStringSubmatch(err.Error())
	if found == nil {
		return denied{}, false
	}
	return denied{found[1], found[2], found[3], found[4], found[5], found[6]}, true
}

func (d denied) sentence(installed string) string {
	text := fmt.Sprintf("user %s may not %s %s", d.user, d.verb, schema.GroupResource{Group: d.group, Resource: d.resource})
	if d.name != "" {
		text += " " + d.name
	}
	if d.namespace != "" {
		text += " in namespace " + d.namespace
	}
	if role := d.role(installed); role != "" {
		return text + ": " + role + " permits it"
	}
	return text + ": no role of Millrace permits it; ask an administrator of the cluster"
}
