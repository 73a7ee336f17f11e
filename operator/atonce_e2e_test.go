// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// TestOperatorsAtOnce runs two operators that both work, of which one is killed now and then. The API
// server asks one of them for warnings. Meanwhile 2,000 Services are created, changed and deleted at
// random, for a minute. There are fewer IPv4 addresses than Services.
func TestOperatorsAtOnce(t *testing.T) {
	const (
		workers, each = 8, 250
		duration      = time.Minute
	)
	e := newEnvironment(t)
	e.pool(t, "main", nil, "198.18.0.0-198.18.2.255", "2001:db8:cafe::/64")
	e.pool(t, "asked", func(spec *millracev1alpha1.VIPPoolSpec) { spec.AutoAssign = new(bool) }, "198.18.8.0/28")
	w := newWebhooks(t, e)
	first, second := w.serve(t), e.run(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	customers := make([]*customer, workers)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range customers {
		c := &customer{client: w.client, prefix: fmt.Sprintf("s%d-", i), services: each, random: rand.New(rand.NewPCG(seed, uint64(i))), done: map[string]int{}}
		customers[i] = c
		group.Go(func() error { return c.createAll(ctx) })
	}
	must(t, group.Wait())

	ctx, end := context.WithTimeout(t.Context(), duration)
	defer end()
	group, ctx = errgroup.WithContext(ctx)
	for _, c := range customers {
		group.Go(func() error { return c.work(ctx) })
	}
	group.Go(func() error {
		for ctx.Err() == nil {
			if err := e.owners(ctx, false); err != nil && ctx.Err() == nil {
				return err
			}
			wait(ctx, 250*time.Millisecond)
		}
		return nil
	})
	for range 3 {
		wait(ctx, duration/8)
		second.kill(t)
		wait(ctx, duration/20)
		second = e.run(t)
		wait(ctx, duration/8)
		if first != nil {
			first.kill(t)
		}
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
	t.Logf("%v; %d warnings", total, strings.Count(w.told.Take(), "\n"))
	if total["created"] < workers*each {
		t.Errorf("only %d Services were created, want %d and more", total["created"], workers*each)
	}

	// Both come to rest, and what the statuses say is what the VIPs say.
	writes, since := 0, time.Now()
	eventuallyWithin(t, 5*time.Minute, func(ctx context.Context) error {
		all, err := e.server.Writes()
		if err != nil {
			return err
		}
		now := 0
		for _, write := range all {
			if write.User == operatorUser && write.Namespace != systemNamespace {
				now++
			}
		}
		if now != writes {
			err = fmt.Errorf("the operators write: %d writes, then %d", writes, now)
			writes, since = now, time.Now()
			return err
		}
		if time.Since(since) < 3*time.Second {
			return errors.New("the operators have written just now")
		}
		return e.owners(ctx, true)
	})
	t.Logf("at rest %s after the last change", time.Since(ended).Round(time.Second))
}

func wait(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}

// customer does at random what people do with Services of its own.
type customer struct {
	client   client.Client
	prefix   string
	services int
	random   *rand.Rand
	// done counts by what was done.
	done map[string]int
}

func (c *customer) createAll(ctx context.Context) error {
	for i := range c.services {
		if err := c.create(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// work goes on until the context ends, which is no error.
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
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (c *customer) service(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s%d", c.prefix, i)}}
}

func (c *customer) create(ctx context.Context, i int) error {
	service := c.service(i)
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: new(bool)}
	class(millracev1alpha1.Class)(service)
	if i%4 == 0 {
		// For as long as it is there: a Service that changes its key keeps an address among others.
		annotated(millracev1alpha1.AnnotationSharingKey, fmt.Sprintf("key-%d", c.random.IntN(50)))(service)
	}
	policies := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack}
	service.Spec.IPFamilyPolicy = &policies[c.random.IntN(len(policies))]
	c.wish(service)
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
	c.wish(service)
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

// wish asks for ports, and where the Service is no sharer for an address that others ask for, too, or
// for any.
func (c *customer) wish(service *corev1.Service) {
	delete(service.Annotations, millracev1alpha1.AnnotationAddresses)
	if service.Annotations[millracev1alpha1.AnnotationSharingKey] == "" && c.random.IntN(3) == 0 {
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, millracev1alpha1.AnnotationAddresses, fmt.Sprintf("198.18.8.%d", c.random.IntN(16)))
	}
	service.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: int32(80 + c.random.IntN(4)), Protocol: corev1.ProtocolTCP}}
	if c.random.IntN(2) == 0 {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "b", Port: int32(80 + c.random.IntN(4)), Protocol: corev1.ProtocolUDP})
	}
}

// owners reports ports of addresses with two owners; at rest also those that Services have by their
// status, and not by the claims of VIPs.
func (e *environment) owners(ctx context.Context, atRest bool) error {
	services, vips := &corev1.ServiceList{}, &millracev1alpha1.VIPList{}
	if err := errors.Join(e.client.List(ctx, services, client.InNamespace(namespace)), e.client.List(ctx, vips)); err != nil {
		return err
	}
	var errs []error
	// claimed has the UIDs of each address.
	claimed := map[string][]string{}
	for i := range vips.Items {
		spec := &vips.Items[i].Spec
		owned := map[millracev1alpha1.ClaimedPort]string{}
		for _, claim := range spec.Claims {
			claimed[spec.Address] = append(claimed[spec.Address], claim.UID)
			if len(spec.Claims) > 1 && (claim.SharingKey == "" || claim.SharingKey != spec.Claims[0].SharingKey) {
				errs = append(errs, fmt.Errorf("%s has the claims %+v", spec.Address, spec.Claims))
			}
			for _, port := range claim.Ports {
				if owner, taken := owned[port]; taken {
					errs = append(errs, fmt.Errorf("%s %d/%s is owned by %s and %s", spec.Address, port.Port, port.Protocol, owner, claim.Name))
				}
				owned[port] = claim.Name
			}
		}
	}
	if !atRest {
		return errors.Join(errs...)
	}
	told := map[string]int{}
	for i := range services.Items {
		service := &services.Items[i]
		for _, address := range ingress(service) {
			told[address]++
			if !slices.Contains(claimed[address], string(service.UID)) {
				errs = append(errs, fmt.Errorf("%s is in the status of %s, and claimed by %v", address, service.Name, claimed[address]))
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(claimed)) {
		if told[address] != len(claimed[address]) {
			errs = append(errs, fmt.Errorf("%s is claimed by %d and told by %d Services", address, len(claimed[address]), told[address]))
		}
	}
	return errors.Join(errs...)
}
