// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// TestConcurrentOperators runs two active operators, which are killed, restarted and suspended, so that they
// continue with stale state, and pauses the API server, once for longer than clients keep their
// connections. Meanwhile Services, 2,000 with the build tag long, are created, changed and deleted at
// random, for a minute with that tag or for MILLRACE_CHAOS, some of them with shared addresses. The recorder
// verifies each version of each VIP and Service. For claims lost within milliseconds see
// TestBindUsesPlannedVersion.
func TestConcurrentOperators(t *testing.T) {
	duration := controlplane.ChaosFor(t, atOnceFor)
	var customers []*customer
	for range 4 {
		customers = append(customers, &customer{services: servicesAtOnce}, &customer{services: 12, key: "hot"}, &customer{services: 1, key: "brief"})
	}
	e := newEnvironment(t)
	e.pool(t, "main", nil, "198.18.0.0-198.18.5.255", "2001:db8:cafe::/64")
	e.pool(t, "asked", func(spec *millracev1beta1.VIPPoolSpec) { spec.AutoAssign = new(bool) }, "198.18.8.0/24")
	w := newWebhooks(t, e)
	recorder := newEventRecorder(t, e)
	defer recorder.testify(t)
	first, second := w.serve(t), e.run(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	group, ctx := errgroup.WithContext(t.Context())
	services := 0
	for i, c := range customers {
		c.client, c.number, c.random, c.done = w.client, i, rand.New(rand.NewPCG(seed, uint64(i))), map[string]int{}
		services += c.services
		group.Go(func() error { return c.createAll(ctx) })
	}
	must(t, group.Wait())

	ctx, end := context.WithTimeout(t.Context(), duration)
	defer end()
	group, ctx = errgroup.WithContext(ctx)
	for _, c := range customers {
		group.Go(func() error { return c.work(ctx) })
	}
	group.Go(func() error { return e.stopAPIServer(ctx, duration, rand.New(rand.NewPCG(seed, 1<<32))) })
	random := rand.New(rand.NewPCG(seed, uint64(len(customers))))
	for range 3 {
		pauses(ctx, t, duration/8, random, first, second)
		second.kill(t)
		pauses(ctx, t, duration/20, random, first)
		second = e.run(t)
		pauses(ctx, t, duration/8, random, first, second)
		first.kill(t)
		first = w.serve(t)
	}
	must(t, group.Wait())
	ended := time.Now()
	total := map[string]int{}
	for _, c := range customers {
		for what, count := range c.done {
			total[what] += count
		}
	}
	t.Logf("%v; %d warnings", total, strings.Count(w.warnings.Take(), "\n"))
	if total["created"] < services {
		t.Errorf("only %d Services were created, want at least %d", total["created"], services)
	}

	// Both operators stop writing, and statuses match VIPs.
	e.server.AwaitIdle(t, 5*time.Minute, 3*time.Second, func(write controlplane.Write) bool {
		return write.User == operatorUser && write.Namespace != systemNamespace
	}, func(ctx context.Context) error {
		return errors.Join(controlplane.Owners(ctx, e.client), recorder.hasAll(ctx))
	})
	t.Logf("idle %s after the last change", time.Since(ended).Round(time.Second))
}

// stopAPIServer pauses the API server, once for longer than HTTP2_READ_IDLE_TIMEOUT_SECONDS and
// HTTP2_PING_TIMEOUT_SECONDS of apimachinery.
func (e *environment) stopAPIServer(ctx context.Context, duration time.Duration, random *rand.Rand) error {
	const times, lost = 6, 50 * time.Second
	for i := range times {
		controlplane.Wait(ctx, duration/times/2)
		pause := time.Duration(random.Int64N(int64(5 * time.Second)))
		if i == times/2 && duration > 4*lost {
			pause = lost
		}
		if err := e.server.Pause(); err != nil {
			return fmt.Errorf("pause the API server: %w", err)
		}
		controlplane.Wait(ctx, pause)
		if err := e.server.Resume(); err != nil {
			return fmt.Errorf("resume the API server: %w", err)
		}
		controlplane.Wait(ctx, duration/times/2-pause)
	}
	return nil
}

// pauses suspends the operators at random, as on an overloaded machine.
func pauses(ctx context.Context, t *testing.T, duration time.Duration, random *rand.Rand, operators ...*instance) {
	t.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end) && ctx.Err() == nil; {
		operator := operators[random.IntN(len(operators))]
		operator.signal(t, syscall.SIGSTOP)
		controlplane.Wait(ctx, time.Duration(20+random.IntN(100))*time.Millisecond)
		operator.signal(t, syscall.SIGCONT)
		controlplane.Wait(ctx, time.Duration(random.IntN(60))*time.Millisecond)
	}
}

type customer struct {
	client   client.Client
	number   int
	services int
	// key is the sharing key of all its Services, whose ports no other Service has.
	key    string
	random *rand.Rand
	done   map[string]int
}

func (c *customer) createAll(ctx context.Context) error {
	for i := range c.services {
		if err := c.create(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *customer) work(ctx context.Context) error {
	for ctx.Err() == nil {
		i := c.random.IntN(c.services)
		var err error
		switch c.random.IntN(3) {
		case 0:
			err = c.create(ctx, i)
		case 1:
			err = c.change(ctx, i)
		default:
			err = c.remove(ctx, i)
		}
		if err != nil && ctx.Err() == nil && !controlplane.IsUnanswered(err) {
			return err
		}
	}
	return nil
}

func (c *customer) service(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("s%d-%d", c.number, i)}}
}

func (c *customer) create(ctx context.Context, i int) error {
	service := c.service(i)
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: new(bool)}
	class(millracev1beta1.Class)(service)
	if c.key != "" {
		annotated(millracev1beta1.AnnotationSharingKey, c.key)(service)
	} else if i%4 == 0 {
		// The key is immutable, because a Service that changes its key keeps a shared address.
		annotated(millracev1beta1.AnnotationSharingKey, fmt.Sprintf("key-%d", c.random.IntN(50)))(service)
	}
	policies := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack}
	service.Spec.IPFamilyPolicy = &policies[c.random.IntN(len(policies))]
	c.mutate(service, i)
	err := c.client.Create(ctx, service)
	if err == nil {
		c.done["created"]++
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (c *customer) change(ctx context.Context, i int) error {
	service := c.service(i)
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(service), service); err != nil {
		return client.IgnoreNotFound(err)
	}
	c.mutate(service, i)
	err := c.client.Update(ctx, service)
	if err == nil {
		c.done["changed"]++
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *customer) remove(ctx context.Context, i int) error {
	err := c.client.Delete(ctx, c.service(i))
	if err == nil {
		c.done["deleted"]++
	}
	return client.IgnoreNotFound(err)
}

func (c *customer) mutate(service *corev1.Service, i int) {
	if c.key != "" {
		own := 1000 + 100*c.number + 2*i + c.random.IntN(2)
		service.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: int32(own), Protocol: corev1.ProtocolTCP}}
		return
	}
	delete(service.Annotations, millracev1beta1.AnnotationAddresses)
	if service.Annotations[millracev1beta1.AnnotationSharingKey] == "" && c.random.IntN(3) == 0 {
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, millracev1beta1.AnnotationAddresses, fmt.Sprintf("198.18.8.%d", c.random.IntN(256)))
	}
	service.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: int32(80 + c.random.IntN(4)), Protocol: corev1.ProtocolTCP}}
	if c.random.IntN(2) == 0 {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "b", Port: int32(80 + c.random.IntN(4)), Protocol: corev1.ProtocolUDP})
	}
}
