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

// idsName is the ConfigMap, in the operator's namespace, that has the nodeid.State.
const idsName = "millrace-node-ids"

// idStore gives ids to nodes, and stores which were given, so that an operator after
// this one does not give them again soon. Of two operators at once, only one can store.
type idStore struct {
	client client.Client
	// live reads the ConfigMap, which is not cached.
	live      client.Reader
	namespace string

	// storing is held by the worker that reads or writes what is stored.
	storing sync.Mutex
	// stored is the ConfigMap as it was last read or written; nil: it must be read.
	stored *corev1.ConfigMap

	// mu guards what follows.
	mu sync.Mutex
	// given are ids of LBNodes that the cache may not show yet, by name.
	given map[string]int32
	// asking are those that want an id: the worker that stores next gives one to each.
	asking []*askedID
}

// askedID is a request for an id, and the answer.
type askedID struct {
	node   string
	id     int32
	ok     bool
	err    error
	isDone bool
}

// give returns an id that no node has; false when all are in use. It is stored as given
// before it is used. Workers that ask at once share one write. A node that was given one, and whose
// LBNode was not seen yet, keeps it.
func (n *idStore) give(ctx context.Context, node string) (int32, bool, error) {
	asked := &askedID{node: node}
	n.mu.Lock()
	id, isGiven := n.given[node]
	if !isGiven {
		n.asking = append(n.asking, asked)
	}
	n.mu.Unlock()
	if isGiven {
		return id, true, nil
	}
	n.storing.Lock()
	defer n.storing.Unlock()
	if !asked.isDone {
		n.mu.Lock()
		all := n.asking
		n.asking = nil
		n.mu.Unlock()
		n.answer(ctx, all)
	}
	return asked.id, asked.ok, asked.err
}

// answer gives an id to each that asks. Only the worker that stores calls it.
func (n *idStore) answer(ctx context.Context, all []*askedID) {
	err := func() error {
		state, next, err := n.observe(ctx)
		if err != nil {
			return err
		}
		for _, asked := range all {
			asked.id, next, asked.ok = next.Give()
		}
		return n.write(ctx, state, next)
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, asked := range all {
		asked.isDone, asked.err = true, err
		if err == nil && asked.ok {
			n.given[asked.node] = asked.id
		}
	}
}

// shown takes note that the cache shows the LBNode of a node, or that the node is gone.
func (n *idStore) shown(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.given, node)
}

// note stores which ids have become free.
func (n *idStore) note(ctx context.Context) error {
	n.storing.Lock()
	defer n.storing.Unlock()
	state, next, err := n.observe(ctx)
	if err != nil {
		return err
	}
	return n.write(ctx, state, next)
}

// observe returns the state as it is stored, and as it is with the ids that are used now.
func (n *idStore) observe(ctx context.Context) (stored, now nodeid.State, err error) {
	used, err := n.used(ctx)
	if err != nil {
		return stored, now, err
	}
	stored, err = n.read(ctx)
	return stored, stored.Observe(used), err
}

// used are the ids of all LBNodes.
func (n *idStore) used(ctx context.Context) (map[int32]struct{}, error) {
	// Before the list: what is shown in between is in it.
	used := n.notShown()
	list := &millracev1beta1.LBNodeList{}
	if err := n.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing LBNodes: %w", err)
	}
	for i := range list.Items {
		used[list.Items[i].Spec.ID] = struct{}{}
	}
	return used, nil
}

func (n *idStore) notShown() map[int32]struct{} {
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
			return nodeid.State{}, fmt.Errorf("reading ConfigMap %s/%s: %w", n.namespace, idsName, err)
		}
		n.stored = stored
	}
	state, err := nodeid.Parse(n.stored.Data)
	if err != nil {
		// Better to forget what was given than to give nothing.
		log.FromContext(ctx).Error(err, "ConfigMap is unreadable and will be written again", "name", idsName)
		return nodeid.State{}, nil
	}
	return state, nil
}

func (n *idStore) write(ctx context.Context, before, after nodeid.State) error {
	if before.Equal(after) {
		return nil
	}
	changed := n.stored.DeepCopy()
	changed.Data = after.Texts()
	// Whatever the answer, what is stored then has to be read again unless it is ours.
	n.stored = nil
	var err error
	if changed.ResourceVersion == "" {
		err = n.client.Create(ctx, changed)
	} else {
		err = n.client.Update(ctx, changed)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("storing node ids: another operator did at the same time: %w", err)
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", n.namespace, idsName, err)
	}
	n.stored = changed
	return nil
}
