// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/figures"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// createdVariable sets the number of Services, createdPerSecond is the rate of creation.
	createdVariable  = "MILLRACE_CREATED"
	createdPerSecond = 50
)

// TestControlPlane measures the operator while Services are created at a rate and then deleted. By default
// it verifies only the result of few Services; make bench-control takes the figures.
func TestControlPlane(t *testing.T) {
	services := 60
	if text := os.Getenv(createdVariable); text != "" {
		var err error
		services, err = strconv.Atoi(text)
		must(t, err)
	}
	e := newEnvironment(t)
	e.pool(t, "main", nil, "198.18.0.0/16")
	must(t, e.client.Create(t.Context(), &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}))
	e.run(t)
	// Without a session each Service would be reported as not announced.
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	assigned := e.firstAddresses(t, namespace, services)
	// The operator is running once it has assigned an address.
	e.service(t, "first")
	awaitAssigned(t, assigned, map[string]time.Time{"first": time.Now()})
	before := e.operatorWrites(t)

	began := time.Now()
	took, last := awaitAssigned(t, assigned, e.servicesAtRate(t, services))
	report := &figures.Report{}
	report.Add("Services assigned in a second", float64(services)/last.Sub(began).Seconds(), -0.95*createdPerSecond, "")
	report.Add("created until assigned, median", float64(took[len(took)/2].Milliseconds()), 50, "ms")
	report.Add("created until assigned, 99th percentile", float64(took[len(took)*99/100].Milliseconds()), 500, "ms")
	report.Add("writes for a Service", float64(e.operatorWrites(t)-before)/float64(services), 2.1, "")
	began, before = time.Now(), e.operatorWrites(t)
	must(t, e.client.DeleteAllOf(t.Context(), &corev1.Service{}, client.InNamespace(namespace)))
	// The API server marks one after another, concurrently with the operator.
	marked := time.Since(began)
	controlplane.Eventually(t, 10*time.Minute, func(ctx context.Context) error {
		left := &metav1.PartialObjectMetadataList{}
		left.SetGroupVersionKind(millracev1beta1.GroupVersion.WithKind("VIPList"))
		if err := e.client.List(ctx, left); err != nil || len(left.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d VIPs remain", len(left.Items)))
		}
		return nil
	})
	report.Add("all deleted at once: until the addresses are free", time.Since(began).Seconds(), float64(services)/createdPerSecond, "s")
	report.Add("the same: until the API server has marked all", marked.Seconds(), float64(services)/createdPerSecond, "s")
	report.Add("writes for the deletion of one", float64(e.operatorWrites(t)-before)/float64(services+1), 2.1, "")
	report.Print(t, fmt.Sprintf("Operator: %d Services created at %d/s", services, createdPerSecond))
}

func (e *environment) servicesAtRate(t *testing.T, services int) map[string]time.Time {
	t.Helper()
	created := map[string]time.Time{}
	ticker := time.NewTicker(time.Second / createdPerSecond)
	defer ticker.Stop()
	for i := range services {
		<-ticker.C
		name := fmt.Sprintf("rate-%d", i)
		created[name] = time.Now()
		e.service(t, name)
	}
	return created
}

type assignment struct {
	service string
	at      time.Time
}

func (e *environment) firstAddresses(t *testing.T, namespace string, services int) <-chan assignment {
	t.Helper()
	watching, err := client.NewWithWatch(e.server.Admin(), client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	events, err := watching.Watch(t.Context(), &corev1.ServiceList{}, client.InNamespace(namespace))
	must(t, err)
	t.Cleanup(events.Stop)
	// The channel is not read while Services are created.
	assigned := make(chan assignment, services+1)
	go func() {
		defer close(assigned)
		seen := map[string]bool{}
		for event := range events.ResultChan() {
			service, isService := event.Object.(*corev1.Service)
			if event.Type == watch.Deleted || !isService || len(service.Status.LoadBalancer.Ingress) == 0 || seen[service.Name] {
				continue
			}
			seen[service.Name] = true
			select {
			case assigned <- assignment{service.Name, time.Now()}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return assigned
}

func awaitAssigned(t *testing.T, assigned <-chan assignment, created map[string]time.Time) (took []time.Duration, last time.Time) {
	t.Helper()
	deadline := time.After(10 * time.Minute)
	for len(created) > len(took) {
		select {
		case a, open := <-assigned:
			if !open {
				t.Fatal("the watch of Services was closed")
			}
			if begun, known := created[a.service]; known {
				took, last = append(took, a.at.Sub(begun)), a.at
			}
		case <-deadline:
			t.Fatalf("%d of %d Services have no address", len(created)-len(took), len(created))
		}
	}
	slices.Sort(took)
	return took, last
}

func (e *environment) operatorWrites(t *testing.T) int {
	t.Helper()
	all, err := e.server.Writes()
	must(t, err)
	writes := 0
	for _, write := range all {
		if write.User == operatorUser && write.Namespace != systemNamespace {
			writes++
		}
	}
	return writes
}
