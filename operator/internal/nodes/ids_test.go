// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/nodeid"
)

// laggingClient catches up at every tenth list. Some writes fail, those of the ConfigMap after they were
// applied.
type laggingClient struct {
	client.Client
	lists, creates, stores, failed atomic.Int64

	mu    sync.Mutex
	shown []millracev1beta1.LBNode
}

func (c *laggingClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	nodes, ok := list.(*millracev1beta1.LBNodeList)
	if !ok {
		return c.Client.List(ctx, list, options...)
	}
	selected := client.ListOptions{}
	selected.ApplyOptions(options)
	if selected.FieldSelector != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists.Add(1)%10 == 0 {
		now := &millracev1beta1.LBNodeList{}
		if err := c.Client.List(ctx, now); err != nil {
			return err
		}
		c.shown = now.Items
	}
	nodes.Items = slices.Clone(c.shown)
	return nil
}

func (c *laggingClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	node, ok := object.(*millracev1beta1.LBNode)
	if !ok {
		return c.Client.Get(ctx, key, object, options...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.shown {
		if c.shown[i].Name == key.Name {
			c.shown[i].DeepCopyInto(node)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "lbnodes"}, key.Name)
}

func (c *laggingClient) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if _, isNode := object.(*millracev1beta1.LBNode); isNode && c.creates.Add(1)%5 == 0 {
		c.failed.Add(1)
		return errors.New("creating: the API server does not answer")
	}
	time.Sleep(time.Millisecond)
	return c.Client.Create(ctx, object, options...)
}

func (c *laggingClient) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	time.Sleep(time.Millisecond)
	err := c.Client.Update(ctx, object, options...)
	if c.stores.Add(1)%7 == 0 {
		c.failed.Add(1)
		return errors.New("updating: the connection was lost before the answer")
	}
	return err
}

// Workers never assign an ID twice, whatever write fails, and share writes of the state.
func TestIDsAtOnce(t *testing.T) {
	const count = 200
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), millracev1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	stored := fake.NewClientBuilder().WithScheme(scheme).Build()
	api := &laggingClient{Client: stored}
	r := &lbNodeReconciler{client: api, recorder: events.NewFakeRecorder(count), ids: &idStore{
		client: api, live: stored, namespace: "millrace-system", given: map[string]int32{},
	}}
	queue := make(chan string, 10*count)
	var left sync.WaitGroup
	left.Add(count)
	for i := range count {
		name := fmt.Sprintf("node%03d", i)
		if err := stored.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
		queue <- name
	}
	for range workers {
		go func() {
			for name := range queue {
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
					queue <- name
					continue
				}
				left.Done()
			}
		}()
	}
	left.Wait()
	close(queue)
	nodes := &millracev1beta1.LBNodeList{}
	if err := stored.List(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	owners := map[int32]string{}
	for _, node := range nodes.Items {
		if other, twice := owners[node.Spec.ID]; twice {
			t.Errorf("%s and %s share id %d", other, node.Name, node.Spec.ID)
		}
		owners[node.Spec.ID] = node.Name
	}
	if len(nodes.Items) != count || api.failed.Load() == 0 {
		t.Errorf("%d LBNodes of %d Nodes after %d failures", len(nodes.Items), count, api.failed.Load())
	}
	if writes := api.stores.Load(); writes > count*3/4 {
		t.Errorf("%d writes of allocated ids for %d nodes", writes, count)
	}
	keepsID(t, r.ids)
	state := &corev1.ConfigMap{}
	if err := stored.Get(t.Context(), client.ObjectKey{Namespace: "millrace-system", Name: idsName}, state); err != nil {
		t.Fatal(err)
	}
	// Another operator does not assign these IDs.
	known, err := nodeid.Parse(state.Data)
	if err != nil {
		t.Fatal(err)
	}
	used := map[int32]struct{}{}
	for id := range owners {
		used[id] = struct{}{}
	}
	if id, _, _ := known.Observe(used).Allocate(); owners[id] != "" || id <= slices.Max(slices.Collect(maps.Keys(owners))) {
		t.Errorf("another operator assigned id %d, which %q already used", id, owners[id])
	}
}

// keepsID requests an ID again before the cache has the LBNode, as after an early event.
func keepsID(t *testing.T, ids *idStore) {
	t.Helper()
	var given []int32
	for range 5 {
		if id, ok, err := ids.allocate(t.Context(), "late"); ok && err == nil {
			given = append(given, id)
		}
	}
	if slices.Sort(given); len(given) < 3 || given[0] != given[len(given)-1] {
		t.Errorf("concurrent requests of one node returned %v", given)
	}
	ids.markCached("late")
}
