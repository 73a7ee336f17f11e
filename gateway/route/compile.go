// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"slices"

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
	previous     map[Object][]*resource.Resource
	good         versions
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
	run.result.Retained = append(run.result.Retained, c.certificates.staleSecrets()...)
	finish(run.result)
	run.result.Certificates = c.certificates.list()
	c.certificates.end()
	c.previous = make(map[Object][]*resource.Resource, len(run.result.Proxies))
	for _, proxy := range run.result.Proxies {
		c.previous[proxy.Owner] = proxy.Resources
	}
	return run.result
}

func (c *Compiler) run(objects *Objects, settings Settings, retained map[Object][]Problem) *compilation {
	run := newCompilation(objects, settings, &c.certificates, c.previous, retained)
	compileIngresses(run, objects)
	compileGateways(run, objects)
	return run
}

func finish(result *Result) {
	slices.SortFunc(result.Proxies, func(a, b *Proxy) int { return compareObjects(a.Owner, b.Owner) })
	slices.SortStableFunc(result.Problems, func(a, b Problem) int {
		return cmp.Or(compareObjects(a.Object, b.Object), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	result.Problems = slices.Compact(result.Problems)
	slices.SortFunc(result.Retained, compareObjects)
	result.Retained = slices.Compact(result.Retained)
}
