// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

func sized(tb testing.TB, create func() (*model.Objects, error)) *model.Objects {
	tb.Helper()
	objects, err := create()
	if err != nil {
		tb.Fatal(err)
	}
	return objects
}

// TestSize compiles a cluster of maximum size, and checks that one change preserves all other pointers.
func TestSize(t *testing.T) {
	for name, objects := range map[string]*model.Objects{"ingress": sized(t, routetest.Ingresses), "gateway": sized(t, routetest.Gateways)} {
		t.Run(name, func(t *testing.T) {
			compiler := &route.Compiler{}
			before := compiler.Compile(objects, model.DefaultSettings()).Proxies[0]
			// There are 10,000 hosts with a listener and a group each, 5,000 certificates and 5,000 backends.
			if len(before.Resources) < 30_000 || len(before.Backends) != routetest.Routes {
				t.Fatalf("only %d resources and %d backends", len(before.Resources), len(before.Backends))
			}
			known := map[any]bool{}
			for _, found := range before.Resources {
				known[found] = true
			}
			changed := *objects
			if name == "ingress" {
				changed.Ingresses = append(changed.Ingresses[:routetest.Routes-1:routetest.Routes-1], changed.Ingresses[routetest.Routes-1].DeepCopy())
				changed.Ingresses[routetest.Routes-1].Spec.Rules[0].HTTP.Paths[0].Path = "/new"
			} else {
				changed.HTTPRoutes = append(changed.HTTPRoutes[:routetest.Routes-1:routetest.Routes-1], changed.HTTPRoutes[routetest.Routes-1].DeepCopy())
				changed.HTTPRoutes[routetest.Routes-1].Spec.Hostnames = changed.HTTPRoutes[routetest.Routes-1].Spec.Hostnames[:1]
			}
			other := 0
			for _, found := range compiler.Compile(&changed, model.DefaultSettings()).Proxies[0].Resources {
				if !known[found] {
					other++
				}
			}
			if other > 2 {
				t.Errorf("%d resources changed, want at most 2 for one changed object", other)
			}
		})
	}
}

func benchmark(b *testing.B, objects *model.Objects) {
	compiler := &route.Compiler{}
	compiler.Compile(objects, model.DefaultSettings())
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	for range b.N {
		compiler.Compile(objects, model.DefaultSettings())
	}
	b.ReportMetric(float64((processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}

func processorTime(tb testing.TB) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkIngress measures a full compilation with 5,000 routes, 10,000 hosts and 5,000 certificates.
func BenchmarkIngress(b *testing.B) { benchmark(b, sized(b, routetest.Ingresses)) }
func BenchmarkGateway(b *testing.B) { benchmark(b, sized(b, routetest.Gateways)) }
