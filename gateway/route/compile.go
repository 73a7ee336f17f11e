// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Compile compiles objects into proxy configurations, frontends and statuses. The order of the objects
// does not change the result.
func Compile(objects *Objects, settings Settings) *Result {
	return new(Compiler).Compile(objects, settings)
}

// Compiler compiles successive versions of the objects. It parses each certificate once, and unchanged
// resources are the same pointers as in the previous result, because the contents of both results are
// compared. If the new version of an object fails, its last version that compiled is used instead
// (Result.Retained); otherwise the results are those of the function Compile. The zero value is ready to
// use. A Compiler is not safe for concurrent use.
type Compiler struct {
	certificates certificateCache
	previous     previous
	good         versions
	// backends is the number of backends of the previous result.
	backends int
}

// maxRestores bounds how often a compilation is repeated with previous versions of failed objects: the
// parameters of a class, then an Ingress, then its users.
const maxRestores = 3

// Compile compiles the next version of the objects.
func (c *Compiler) Compile(objects *Objects, settings Settings) *Result {
	c.certificates.begin()
	run := c.run(objects, settings, nil)
	failed := run.failed
	for range maxRestores {
		restored, retained := c.good.restore(objects, failed)
		if len(retained) == len(run.retained) {
			break
		}
		run = c.run(restored, settings, retained)
		// A restored object can make others fail: the parameters of a class enable the annotations of
		// Ingresses.
		for name, failures := range run.failed {
			if failed[name] == nil {
				failed[name] = failures
			}
		}
	}
	run.addRetained()
	c.good = c.good.next(run)
	for at := range c.certificates.stale {
		run.result.Retained = append(run.result.Retained, Object{Kind: kindSecret, Namespace: at.namespace, Name: at.name})
	}
	run.finish()
	run.result.Certificates = c.certificates.list()
	c.certificates.end()
	c.previous, c.backends = make(previous, len(run.result.Proxies)), len(run.backends)
	for _, proxy := range run.result.Proxies {
		c.previous[proxy.Owner] = proxy.Resources
	}
	return run.result
}

func (c *Compiler) run(objects *Objects, settings Settings, retained map[Object][]Problem) *compilation {
	run := &compilation{
		settings:      settings.withBounds(),
		index:         newIndex(objects),
		certificates:  &c.certificates,
		previous:      c.previous,
		result:        &Result{},
		backends:      make(map[backendKey]*backend, c.backends),
		authorities:   map[key]*resource.Resource{},
		gatewayByKey:  map[key]*gateway{},
		sets:          map[key]*listenerSet{},
		read:          map[string]int64{},
		charged:       map[charge]bool{},
		nginxSettings: map[*networkingv1.Ingress]*nginxSettings{},
		widest:        map[string]int64{},
		good:          versions{},
		failed:        map[Object][]Problem{},
		retained:      retained,
	}
	run.readPolicies(objects.BackendTLSPolicies)
	run.ingresses(objects)
	run.gateways(objects)
	return run
}

type compilation struct {
	settings     Settings
	index        *index
	certificates *certificateCache
	previous     previous
	result       *Result

	policies     policies
	backends     map[backendKey]*backend
	authorities  map[key]*resource.Resource
	gatewayByKey map[key]*gateway
	sets         map[key]*listenerSet
	// nginxSettings are the annotations of ingress-nginx of Ingresses whose class enables them.
	nginxSettings map[*networkingv1.Ingress]*nginxSettings
	// widest is the largest size that annotations of an Ingress add to a path, by namespace.
	widest           map[string]int64
	read             map[string]int64
	good             versions
	failed, retained map[Object][]Problem
	// charged are the host names at which the current route is counted; charges lists them in order.
	charged map[charge]bool
	charges []charge
}

func (c *compilation) problem(object Object, field, reason, message string) {
	message = strings.ToValidUTF8(field+": "+message, "\uFFFD")
	c.result.Problems = append(c.result.Problems, Problem{Object: object, Field: field, Reason: reason, Message: message})
	if isFailure(object, field, reason) {
		c.addFailure(object, field, reason, message)
	}
}

func (c *compilation) finish() {
	statuses := &c.result.Statuses
	sortStatuses(statuses.GatewayClasses)
	sortStatuses(statuses.ListenerSets)
	sortStatuses(statuses.BackendTLSPolicies)
	slices.SortFunc(c.result.Frontends, compareFrontends)
	slices.SortFunc(c.result.Proxies, func(a, b *Proxy) int { return compareObjects(a.Owner, b.Owner) })
	slices.SortFunc(c.result.Ingresses, func(a, b IngressStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(c.result.Problems, func(a, b Problem) int {
		return cmp.Or(compareObjects(a.Object, b.Object), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	c.result.Problems = slices.Compact(c.result.Problems)
	slices.SortFunc(c.result.Retained, compareObjects)
	c.result.Retained = slices.Compact(c.result.Retained)
}

func compareObjects(a, b Object) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

type key struct{ namespace, name string }

func keyOf(object metav1.Object) key { return key{object.GetNamespace(), object.GetName()} }

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

func sortStatuses[T any](statuses []Status[T]) {
	slices.SortFunc(statuses, func(a, b Status[T]) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
