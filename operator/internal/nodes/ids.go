// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/nodeid"
)

// idsName is the ConfigMap with the nodeid.State in the operator's namespace.
const idsName = "millrace-node-ids"

// idStore persists the state, so that IDs are reused late even after the operator is replaced. If two
// operators run, only one write succeeds.
type idStore struct {
	client    client.Client
	live      client.Reader
	namespace string

	storeMu sync.Mutex
	// stored is the last version of the ConfigMap that was read or written; nil if it must be read.
	stored *corev1.ConfigMap

	mu sync.Mutex
	// given holds IDs of LBNodes that the cache may not have yet, by name.
	given map[string]int32
	// requests holds requests for the worker that stores next.
	requests []*idRequest
}

type idRequest struct {
	node   string
	id     int32
	ok     bool
	err    error
	isDone bool
}

// allocate returns an unused ID after storing the state, or false if all are in use. Concurrent requests
// share one write. A node keeps its ID until its LBNode is in the cache.
func (n *idStore) allocate(ctx context.Context, node string) (int32, bool, error) {
	request := &idRequest{node: node}
	n.mu.Lock()
	id, isGiven := n.given[node]
	if !isGiven {
		n.requests = append(n.requests, request)
	}
	n.mu.Unlock()
	if isGiven {
		return id, true, nil
	}
	n.storeMu.Lock()
	defer n.storeMu.Unlock()
	if !request.isDone {
		n.mu.Lock()
		all := n.requests
		n.requests = nil
		n.mu.Unlock()
		n.allocateAll(ctx, all)
	}
	return request.id, request.ok, request.err
}

// allocateAll assigns an ID to each request; storeMu must be held.
func (n *idStore) allocateAll(ctx context.Context, all []*idRequest) {
	err := func() error {
		state, next, err := n.observe(ctx)
		if err != nil {
			return err
		}
		for _, request := range all {
			request.id, next, request.ok = next.Allocate()
		}
		return n.write(ctx, state, next)
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, request := range all {
		request.isDone, request.err = true, err
		if err == nil && request.ok {
			n.given[request.node] = request.id
		}
	}
}

// markCached records that the cache has the LBNode of a node, or that the node was deleted.
func (n *idStore) markCached(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.given, node)
}

func (n *idStore) note(ctx context.Context) error {
	n.storeMu.Lock()
	defer n.storeMu.Unlock()
	state, next, err := n.observe(ctx)
	if err != nil {
		return err
	}
	return n.write(ctx, state, next)
}

func (n *idStore) observe(ctx context.Context) (stored, now nodeid.State, err error) {
	used, err := n.used(ctx)
	if err != nil {
		return stored, now, err
	}
	stored, err = n.read(ctx)
	return stored, stored.Observe(used), err
}

func (n *idStore) used(ctx context.Context) (map[int32]struct{}, error) {
	// Read before the list, so that LBNodes that appear in between are counted.
	used := n.uncachedIDs()
	list := &millracev1beta1.LBNodeList{}
	if err := n.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list LBNodes: %w", err)
	}
	for i := range list.Items {
		used[list.Items[i].Spec.ID] = struct{}{}
	}
	return used, nil
}

func (n *idStore) uncachedIDs() map[int32]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := make(map[int32]struct{}, len(n.given))
	for _, id := range n.given {
		ids[id] = struct{}{}
	}
	return ids
}

func (n *idStore) read(ctx context.Context) (nodeid.State, error) {
	if n.stored == nil {
		stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: idsName}}
		err := n.live.Get(ctx, types.NamespacedName{Namespace: n.namespace, Name: idsName}, stored)
		if client.IgnoreNotFound(err) != nil {
			return nodeid.State{}, fmt.Errorf("read ConfigMap %s/%s: %w", n.namespace, idsName, err)
		}
		n.stored = stored
	}
	state, err := nodeid.Parse(n.stored.Data)
	if err != nil {
		// Losing the order of freed IDs is better than not assigning IDs.
		log.FromContext(ctx).Error(err, "Replacing an invalid ConfigMap", "name", idsName)
		return nodeid.State{}, nil
	}
	return state, nil
}

func (n *idStore) write(ctx context.Context, before, after nodeid.State) error {
	if before.Equal(after) {
		return nil
	}
	changed := n.stored.DeepCopy()
	changed.Data = after.Data()
	// After a failed write the stored state is unknown and must be read again.
	n.stored = nil
	var err error
	if changed.ResourceVersion == "" {
		err = n.client.Create(ctx, changed)
	} else {
		err = n.client.Update(ctx, changed)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("store node IDs: another operator stored them concurrently: %w", err)
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", n.namespace, idsName, err)
	}
	n.stored = changed
	return nil
}
