// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/figures"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// waitingVariable sets the number of waiting Services of TestManyWaiting.
	waitingVariable = "MILLRACE_WAITING"
	// disturbed is the duration of each phase of changes, in seconds.
	disturbed = 15
	phases    = 4
)

// TestManyWaiting measures the cost of waiting Services while irrelevant changes occur every second. make
// bench-control takes the figures, with more Services.
func TestManyWaiting(t *testing.T) {
	waiting := 200
	if text := os.Getenv(waitingVariable); text != "" {
		var err error
		waiting, err = strconv.Atoi(text)
		must(t, err)
	}
	e := newEnvironment(t)
	setLabel(t, e, otherNamespace, "has", "room")
	e.pool(t, "full", nil, "198.51.100.10/32")
	room := &metav1.LabelSelector{MatchLabels: map[string]string{"has": "room"}}
	e.pool(t, "room", func(spec *millracev1beta1.VIPPoolSpec) { spec.NamespaceSelector = room }, "198.18.0.0/16")
	e.pool(t, "edited", func(spec *millracev1beta1.VIPPoolSpec) { spec.NamespaceSelector = room }, "203.0.113.0/24")
	must(t, e.client.Create(t.Context(), &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}))
	operator := e.run(t)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	node := e.node(t, "changing", "198.51.100.20")
	e.addresses(t, e.service(t, "holder"), "198.51.100.10")
	first := e.service(t, "first")
	e.condition(t, first, metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, "")
	e.wait(t, waiting)

	report := &figures.Report{}
	measure := func(what string, change func(second int)) {
		e.awaitIdle(t, 3*time.Second)
		used := operator.processorTime(t)
		took := e.whileChanging(t, change)
		report.Add(what+": processors", (operator.processorTime(t)-used).Seconds()/disturbed, 0.05, "")
		report.Add("the same: 5 Services a second until assigned, median", milliseconds(took[len(took)/2]), 50, "ms")
		report.Add("the same: the longest", milliseconds(took[len(took)-1]), 500, "ms")
	}
	measure("no change", func(int) {})
	measure("label of the namespace", func(second int) { setLabel(t, e, namespace, "second", strconv.Itoa(second)) })
	measure("pool not available to the Services", func(second int) {
		update(t, e, &millracev1beta1.VIPPool{ObjectMeta: metav1.ObjectMeta{Name: "edited"}}, func(pool *millracev1beta1.VIPPool) {
			pool.Spec.Addresses = []string{fmt.Sprintf("203.0.113.%d/32", second)}
		})
	})
	measure("address of a node", func(second int) { e.setAddresses(t, node, fmt.Sprintf("198.51.100.%d", 30+second)) })
	report.Print(t, fmt.Sprintf("Operator: %d Services wait", waiting))
	update(t, e, &millracev1beta1.VIPPool{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, func(pool *millracev1beta1.VIPPool) {
		pool.Spec.Addresses = append(pool.Spec.Addresses, "198.51.100.11/32")
	})
	e.bound(t, "198.51.100.11", first)
}

func (e *environment) wait(t *testing.T, count int) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for number := range count {
		group.Go(func() error {
			service := e.unmade(namespace, fmt.Sprintf("waiting-%d", number))
			// There are fewer node ports than Services.
			service.Spec.AllocateLoadBalancerNodePorts = new(bool)
			return e.client.Create(ctx, service)
		})
	}
	must(t, group.Wait())
	controlplane.Eventually(t, 10*time.Minute, func(ctx context.Context) error {
		services := &corev1.ServiceList{}
		if err := e.client.List(ctx, services, client.InNamespace(namespace)); err != nil {
			return err
		}
		reported := 0
		for i := range services.Items {
			if meta.IsStatusConditionFalse(services.Items[i].Status.Conditions, millracev1beta1.ConditionAddressAssigned) {
				reported++
			}
		}
		if reported < count {
			return fmt.Errorf("%d of %d Services report that they are waiting", reported, count)
		}
		return nil
	})
}

// whileChanging makes a change and creates Services each second, and returns sorted durations.
func (e *environment) whileChanging(t *testing.T, change func(second int)) []time.Duration {
	t.Helper()
	const inSecond = 5
	// The watch also returns Services of previous phases.
	assigned := e.firstAddresses(t, otherNamespace, phases*disturbed*inSecond)
	created := map[string]time.Time{}
	ticker := time.NewTicker(time.Second / inSecond)
	defer ticker.Stop()
	for number := range disturbed * inSecond {
		if number%inSecond == 0 {
			change(number / inSecond)
		}
		<-ticker.C
		name := fmt.Sprintf("beside-%d-%d", rand.Uint32(), number)
		created[name] = time.Now()
		must(t, e.client.Create(t.Context(), e.unmade(otherNamespace, name)))
	}
	took, _ := awaitAssigned(t, assigned, created)
	return took
}

func setLabel(t *testing.T, e *environment, name, key, value string) {
	t.Helper()
	update(t, e, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, func(namespace *corev1.Namespace) {
		if namespace.Labels == nil {
			namespace.Labels = map[string]string{}
		}
		namespace.Labels[key] = value
	})
}
