// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// runAll runs workers on Services, also requeued ones, until all have succeeded.
func (c *cluster) runAll(names ...string) {
	c.t.Helper()
	r := c.reconciler
	r.client, r.live = unlockingWriter{r.client, &r.lock}, unlockingReader{r.live, &r.lock}
	defer func() { r.client, r.live = r.client.(unlockingWriter).Client, r.live.(unlockingReader).Reader }()
	queue := make(chan string, 100*len(names))
	r.later = func(service types.NamespacedName, _ time.Duration) { queue <- service.Name }
	for _, name := range names {
		queue <- name
	}
	for range 10 {
		var workers sync.WaitGroup
		for range serviceWorkers {
			workers.Go(func() {
				for {
					select {
					case name := <-queue:
						request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: name}}
						if _, err := r.Reconcile(c.t.Context(), request); err != nil {
							queue <- name
						}
					default:
						return
					}
				}
			})
		}
		if workers.Wait(); len(queue) == 0 {
			return
		}
	}
	c.t.Errorf("%d Services are still in the queue", len(queue))
}

// Concurrent workers assign no address twice and serve Services in order of age.
func TestWorkersAreSerialized(t *testing.T) {
	const services, addresses = 60, 40
	c := newCluster(t, poolWith("203.0.113.0-203.0.113.39"))
	var names []string
	for i := range services {
		name := fmt.Sprintf("web-%02d", i)
		c.add(name, nil)
		c.reconciler.addWaiting(c.service(name), false)
		names = append(names, name)
	}
	shuffled := slices.Clone(names)
	for i := range shuffled {
		j := (i * 37) % len(shuffled)
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	}
	c.runAll(shuffled...)
	seen := map[string]string{}
	for i, name := range names {
		ingress := c.service(name).Status.LoadBalancer.Ingress
		if (len(ingress) == 1) != (i < addresses) {
			t.Errorf("%s, number %d in the queue for %d addresses, has %v", name, i+1, addresses, ingress)
		}
		for _, has := range ingress {
			if other, twice := seen[has.IP]; twice {
				t.Errorf("%s and %s both have %s", name, other, has.IP)
			}
			seen[has.IP] = name
		}
	}
}

// Services join a shared address one after another, also while its VIP is being created.
func TestWorkersShare(t *testing.T) {
	c := newCluster(t, poolWith("203.0.113.0/24"))
	var names []string
	for i := range 30 {
		name := fmt.Sprintf("dns-%02d", i)
		c.add(name, func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationSharingKey: "dns"}
			service.Spec.Ports = []corev1.ServicePort{{Port: int32(1000 + i), Protocol: corev1.ProtocolTCP}}
		})
		c.reconciler.addWaiting(c.service(name), false)
		names = append(names, name)
	}
	c.runAll(names...)
	vips := &millracev1beta1.VIPList{}
	if err := c.api.List(t.Context(), vips); err != nil {
		t.Fatal(err)
	}
	if len(vips.Items) != 1 || len(vips.Items[0].Spec.Claims) != len(names) {
		t.Fatalf("%d VIPs, want one shared by all: %+v", len(vips.Items), vips.Items)
	}
	for _, name := range names {
		c.has(map[string]string{name: vips.Items[0].Spec.Address})
	}
}

// Pending addresses are in use while they are written, and released after a failure.
func TestPendingWrites(t *testing.T) {
	l := newVIPCache()
	var addresses netipx.IPSetBuilder
	addresses.Add(address)
	set, err := addresses.IPSet()
	if err != nil {
		t.Fatal(err)
	}
	pools := []ipam.Pool{{Name: "p", AutoAssign: true, Addresses: ipam.NewAddresses(set)}}
	request := func(owner string) ipam.Request {
		return ipam.Request{
			Owner: ipam.Owner{Namespace: "shop", Name: owner, UID: owner}, Families: []ipam.Family{ipam.IPv4},
			Eligible: []string{pools[0].Name}, Ports: []ipam.Port{{Number: 80, Protocol: "TCP"}},
		}
	}
	plan, _ := l.plan(pools, request("first"))
	l.addPending(plan)
	if other, _ := l.plan(pools, request("second")); len(other.Create) > 0 {
		t.Errorf("a pending address is assigned to another Service: %+v", other)
	}
	if len(l.claimed("shop", "first")) > 0 || !l.isPending(plan) {
		t.Error("the pending VIP is in the cache, or not marked as pending")
	}
	changes := l.changes.Load()
	if l.resolvePending(plan) || l.changes.Load() == changes {
		t.Error("resolving an unwritten pending VIP does not retry waiting Services")
	}
	other, _ := l.plan(pools, request("second"))
	if len(other.Create) != 1 {
		t.Fatalf("the address of an unwritten VIP was not released: %+v", other)
	}
	l.addPending(other)
	written := newVIP(other.Create[0])
	written.ResourceVersion = "7"
	l.put(written)
	if !l.resolvePending(other) || l.object(address) != written {
		t.Error("a written VIP is still pending, or not in the cache")
	}
}

// An exclusive worker waits for the others, and they wait for it.
func TestExclusiveWorker(t *testing.T) {
	var lock workerLock
	runs, exclusive := 0, false
	var workers sync.WaitGroup
	for i := range 20 {
		workers.Go(func() {
			service := types.NamespacedName{Name: fmt.Sprint(i)}
			err := lock.run(service, func() error {
				if runs++; i%5 == 0 && !lock.isExclusive {
					return fmt.Errorf("shop/%d: %w", i, errNeedsExclusive)
				}
				if exclusive {
					return errors.New("another worker is exclusive")
				}
				if exclusive = lock.isExclusive; exclusive && len(lock.active) > 0 {
					return errors.New("other workers are active")
				}
				lock.release()()
				exclusive = false
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	if workers.Wait(); runs != 24 {
		t.Errorf("%d runs, want 24", runs)
	}
}

type watchedReader struct {
	client.Reader
	onRead func()
}

func (r watchedReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, isMetadata := object.(*metav1.PartialObjectMetadata); isMetadata {
		r.onRead()
	}
	return r.Reader.Get(ctx, key, object, options...)
}

// The read of the namespace before an event releases the turn.
func TestEventsDoNotBlockWorkers(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil))
	r, reads := c.reconciler, 0
	r.releaseDelay = time.Minute
	r.connect(r.client, control.Recorder{EventRecorder: c.events, Cached: r.client, Live: watchedReader{Reader: r.live, onRead: func() {
		reads++
		if !r.lock.mu.TryLock() {
			t.Error("a worker holds the lock while it reads a namespace")
			return
		}
		r.lock.mu.Unlock()
	}}})
	c.reconcile("web")
	if err := c.api.Delete(t.Context(), c.service("web")); err != nil {
		t.Fatal(err)
	}
	c.reconcile("web")
	if reads == 0 {
		t.Error("no namespace was read: the test case is invalid")
	}
}

type heldClient struct {
	client.Client
	released chan struct{}
}

func (h heldClient) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	if _, isVIP := object.(*millracev1beta1.VIP); isVIP {
		<-h.released
	}
	return h.Client.Update(ctx, object, options...)
}

// Services that wait to join an address do not occupy workers, and all of them join eventually.
func TestSharersDoNotBlockOthers(t *testing.T) {
	c := newCluster(t, poolWith("203.0.113.0/24"))
	add := func(name string, port int) {
		c.add(name, func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationSharingKey: "dns"}
			service.Spec.Ports = []corev1.ServicePort{{Port: int32(port), Protocol: corev1.ProtocolTCP}}
		})
		c.reconciler.addWaiting(c.service(name), false)
	}
	add("first", 999)
	c.reconcile("first")
	names := []string{}
	for i := range 3 * serviceWorkers {
		names = append(names, fmt.Sprintf("dns-%02d", i))
		add(names[i], 1000+i)
	}
	c.add("other", nil)
	c.reconciler.addWaiting(c.service("other"), false)
	held := heldClient{c.reconciler.client, make(chan struct{})}
	c.reconciler.client = held
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.runAll(names...)
	}()
	waiting := c.reconciler.waiting
	joining := func() int {
		waiting.mu.Lock()
		defer waiting.mu.Unlock()
		return len(waiting.joining)
	}
	for deadline := time.Now().Add(time.Minute); joining() < len(names)-1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d Services are queued for the shared VIP, want %d", joining(), len(names)-1)
		}
	}
	served := make(chan error, 1)
	go func() {
		_, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "other"}})
		served <- err
	}()
	select {
	case err := <-served:
		if err != nil || len(c.service("other").Status.LoadBalancer.Ingress) == 0 {
			t.Errorf("another Service has no address: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("another Service is blocked by Services that share an address")
	}
	close(held.released)
	<-done
	address := c.service("first").Status.LoadBalancer.Ingress[0].IP
	for _, name := range names {
		c.has(map[string]string{name: address})
	}
}
