// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"slices"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/internal/gatewayapi"
	"github.com/millrace-lb/millrace/gateway/route/internal/ingress"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Compile compiles objects into proxy configurations, frontends and statuses. The result does not depend on
// the order of the objects.
func Compile(objects *model.Objects, settings model.Settings) *model.Result {
	return new(Compiler).Compile(objects, settings)
}

// Compiler compiles successive versions of the objects. It parses each certificate once. Unchanged resources
// are the same pointers as in the previous result, because the contents of both results are compared. If the
// new version of an object fails, the last version that compiled is used instead (Result.Retained); otherwise
// the result equals that of the function Compile. The zero value is ready to use. A Compiler is not safe for
// concurrent use.
type Compiler struct {
	certificates certificate.Cache
	previous     map[model.Object][]*resource.Resource
	good         builder.Versions
}

// maxRestores limits how often a compilation is repeated with previous versions of failed objects: first the
// parameters of a class, then an Ingress, then its users.
const maxRestores = 3

// Compile compiles the next version of the objects.
func (c *Compiler) Compile(objects *model.Objects, settings model.Settings) *model.Result {
	c.certificates.Begin()
	run := c.run(objects, settings, nil)
	failed := run.Failed
	for range maxRestores {
		restored, retained := restore(c.good, objects, failed)
		if len(retained) == len(run.Retained) {
			break
		}
		run = c.run(restored, settings, retained)
		// Restoring an object can make others fail: for example, the parameters of a class enable annotations
		// of Ingresses.
		for name, failures := range run.Failed {
			if failed[name] == nil {
				failed[name] = failures
			}
		}
	}
	run.AddRetained()
	c.good = nextVersions(c.good, run)
	run.Result.Retained = append(run.Result.Retained, c.certificates.StaleSecrets()...)
	finish(run.Result)
	run.Result.Certificates = c.certificates.List(settings.Now)
	c.certificates.End()
	c.previous = make(map[model.Object][]*resource.Resource, len(run.Result.Proxies))
	for _, proxy := range run.Result.Proxies {
		c.previous[proxy.Owner] = proxy.Resources
	}
	return run.Result
}

func (c *Compiler) run(objects *model.Objects, settings model.Settings, retained map[model.Object][]model.Problem) *builder.Builder {
	run := builder.New(objects, settings, &c.certificates, c.previous, retained)
	ingress.Compile(run, objects)
	gatewayapi.Compile(run, objects)
	return run
}

func finish(result *model.Result) {
	slices.SortFunc(result.Proxies, func(a, b *model.Proxy) int { return model.CompareObjects(a.Owner, b.Owner) })
	slices.SortStableFunc(result.Problems, func(a, b model.Problem) int {
		return cmp.Or(model.CompareObjects(a.Object, b.Object), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	result.Problems = slices.Compact(result.Problems)
	slices.SortFunc(result.Retained, model.CompareObjects)
	result.Retained = slices.Compact(result.Retained)
}
