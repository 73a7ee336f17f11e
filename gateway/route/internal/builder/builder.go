// SPDX-License-Identifier: Apache-2.0

// Package builder implements the parts that the compilers of Ingresses and Gateway API have in common. It
// resolves references to Services, Secrets and BackendTLSPolicies, limits the configuration of namespaces,
// and collects problems and the resources of proxies. It is pure.
package builder

import (
	"cmp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Versions contains the last versions of objects that compiled.
type Versions map[model.Object]metav1.Object

// Builder is the shared state of one compilation. It resolves references and collects the result, the
// problems and the compiled versions of objects.
type Builder struct {
	Settings model.Settings
	Index    *index
	Result   *model.Result
	// Retained contains the failures of objects whose previous versions are compiled, Failed those of this
	// compilation.
	Retained, Failed map[model.Object][]model.Problem
	// Good contains the versions of objects that this compilation uses.
	Good Versions

	Certificates *certificate.Cache
	// previous contains the resources of the previous result by owner.
	previous    map[model.Object][]*resource.Resource
	Policies    policies
	backends    map[backendKey]*Backend
	authorities map[types.NamespacedName]*resource.Resource
}

// New returns a builder that has read the BackendTLSPolicies.
func New(
	objects *model.Objects, settings model.Settings, certificates *certificate.Cache, previous map[model.Object][]*resource.Resource,
	retained map[model.Object][]model.Problem,
) *Builder {
	settings.NamespaceBytes = cmp.Or(settings.NamespaceBytes, defaultNamespaceBytes)
	settings.ProxyBytes = cmp.Or(settings.ProxyBytes, defaultProxyBytes)
	c := &Builder{
		Settings:     settings,
		Index:        newIndex(objects),
		Result:       &model.Result{},
		Retained:     retained,
		Failed:       map[model.Object][]model.Problem{},
		Good:         Versions{},
		Certificates: certificates,
		previous:     previous,
		backends:     make(map[backendKey]*Backend, len(objects.Services)),
		authorities:  map[types.NamespacedName]*resource.Resource{},
	}
	c.readPolicies(objects.BackendTLSPolicies)
	return c
}

// RecordVersion records the version of an object that is compiled.
func (c *Builder) RecordVersion(kind string, object metav1.Object) {
	c.Good[model.Object{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = object
}

// AddFailure records invalid content of an object. The object is then compiled in its previous valid version,
// if there is one.
func (c *Builder) AddFailure(object model.Object, field, reason, message string) {
	// The rest of the message describes effects that the previous version does not have.
	for _, result := range []string{"; requests ", "; its requests "} {
		message, _, _ = strings.Cut(message, result)
	}
	c.Failed[object] = append(c.Failed[object], model.Problem{Object: object, Field: field, Reason: reason, Message: message})
}

// isFailure reports whether a problem is caused by the content of its object. Problems of backends are caused
// by other objects.
func isFailure(object model.Object, field, reason string) bool {
	switch {
	case object.Kind == model.KindConfigMap, reason == model.ReasonAnnotationRejected:
		return true
	case object.Kind != model.KindIngress || reason != model.ReasonInvalid:
		return false
	}
	return !strings.Contains(field, ".backend") && !strings.Contains(field, "defaultBackend")
}

// AddProblem adds a problem of an object's field to the result.
func (c *Builder) AddProblem(object model.Object, field, reason, message string) {
	message = strings.ToValidUTF8(field+": "+message, "\uFFFD")
	c.Result.Problems = append(c.Result.Problems, model.Problem{Object: object, Field: field, Reason: reason, Message: message})
	if isFailure(object, field, reason) {
		c.AddFailure(object, field, reason, message)
	}
}

// AddRetained adds the retained objects to the result, and problems for retained Ingresses, ConfigMaps and
// Secrets. Other objects report the failure in a condition.
func (c *Builder) AddRetained() {
	for _, failures := range c.Retained {
		for _, failure := range failures {
			c.Result.Retained = append(c.Result.Retained, failure.Object)
			if failure.Object.Kind == model.KindIngress || failure.Object.Kind == model.KindConfigMap || failure.Object.Kind == model.KindSecret {
				failure.Message += "; the previous version is still served"
				c.Result.Problems = append(c.Result.Problems, failure)
			}
		}
	}
}
