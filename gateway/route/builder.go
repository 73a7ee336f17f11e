// SPDX-License-Identifier: Apache-2.0

package route

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type versions map[Object]metav1.Object

// compilation is the shared state of one compilation: it resolves references and collects the result, the
// problems and the compiled versions of objects.
type compilation struct {
	settings Settings
	index    *index
	result   *Result
	// retained are the failures of objects whose previous versions are compiled, failed those of this compilation.
	retained, failed map[Object][]Problem
	// good are the compiled versions of objects.
	good versions

	certificates *certificateCache
	// previous are the resources of the previous result by owner.
	previous    map[Object][]*resource.Resource
	policies    policies
	backends    map[backendKey]*backend
	authorities map[types.NamespacedName]*resource.Resource
}

func newCompilation(
	objects *Objects, settings Settings, certificates *certificateCache, previous map[Object][]*resource.Resource,
	retained map[Object][]Problem,
) *compilation {
	c := &compilation{
		settings:     settings.withBounds(),
		index:        newIndex(objects),
		result:       &Result{},
		retained:     retained,
		failed:       map[Object][]Problem{},
		good:         versions{},
		certificates: certificates,
		previous:     previous,
		backends:     make(map[backendKey]*backend, len(objects.Services)),
		authorities:  map[types.NamespacedName]*resource.Resource{},
	}
	c.readPolicies(objects.BackendTLSPolicies)
	return c
}

func (c *compilation) recordVersion(kind string, object metav1.Object) {
	c.good[Object{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = object
}

// addFailure records invalid content of an object, which is compiled in its previous valid version if there is
// one.
func (c *compilation) addFailure(object Object, field, reason, message string) {
	// The effects named after these words do not apply to the previous version.
	for _, result := range []string{"; requests ", "; its requests "} {
		message, _, _ = strings.Cut(message, result)
	}
	c.failed[object] = append(c.failed[object], Problem{Object: object, Field: field, Reason: reason, Message: message})
}

// isFailure excludes problems of backends, which are caused by other objects.
func isFailure(object Object, field, reason string) bool {
	switch {
	case object.Kind == kindConfigMap, reason == ReasonAnnotationRefused:
		return true
	case object.Kind != kindIngress || reason != ReasonInvalid:
		return false
	}
	return !strings.Contains(field, ".backend") && !strings.Contains(field, "defaultBackend")
}

func (c *compilation) problem(object Object, field, reason, message string) {
	message = strings.ToValidUTF8(field+": "+message, "\uFFFD")
	c.result.Problems = append(c.result.Problems, Problem{Object: object, Field: field, Reason: reason, Message: message})
	if isFailure(object, field, reason) {
		c.addFailure(object, field, reason, message)
	}
}

// addRetained skips routes, which have a condition instead.
func (c *compilation) addRetained() {
	for _, failures := range c.retained {
		for _, failure := range failures {
			c.result.Retained = append(c.result.Retained, failure.Object)
			if failure.Object.Kind == kindIngress || failure.Object.Kind == kindConfigMap || failure.Object.Kind == kindSecret {
				failure.Message += "; the previous version is still served"
				c.result.Problems = append(c.result.Problems, failure)
			}
		}
	}
}
