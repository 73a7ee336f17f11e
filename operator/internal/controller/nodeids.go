// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millrace-lb/millrace/operator/internal/nodeid"
)

// nodeIDsName is the ConfigMap, in the operator's namespace, that has the nodeid.State.
const nodeIDsName = "millrace-node-ids"

// nodeIDs gives ids to nodes, and stores which were given, so that an operator after
// this one does not give them again soon. It is not for concurrent use; of two operators
// at once, only one can store.
type nodeIDs struct {
	client client.Client
	// live reads the ConfigMap, which is not cached.
	live      client.Reader
	namespace string
	// stored is the ConfigMap as it was last read or written; nil: it must be read.
	stored *corev1.ConfigMap
}

// give returns an id that no node has; false when all are in use. It is stored as given
// before it is used.
func (n *nodeIDs) give(ctx context.Context, used map[int32]struct{}) (int32, bool, error) {
	state, err := n.read(ctx)
	if err != nil {
		return 0, false, err
	}
	id, next, ok := state.Observe(used).Give()
	if !ok {
		return 0, false, nil
	}
	return id, true, n.write(ctx, state, next)
}

// note stores which ids have become free.
func (n *nodeIDs) note(ctx context.Context, used map[int32]struct{}) error {
	state, err := n.read(ctx)
	if err != nil {
		return err
	}
	return n.write(ctx, state, state.Observe(used))
}

func (n *nodeIDs) read(ctx context.Context) (nodeid.State, error) {
	if n.stored == nil {
		stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: nodeIDsName}}
		err := n.live.Get(ctx, types.NamespacedName{Namespace: n.namespace, Name: nodeIDsName}, stored)
		if client.IgnoreNotFound(err) != nil {
			return nodeid.State{}, fmt.Errorf("reading ConfigMap %s/%s: %w", n.namespace, nodeIDsName, err)
		}
		n.stored = stored
	}
	state, err := nodeid.Parse(n.stored.Data)
	if err != nil {
		// Better to forget what was given than to give nothing.
		log.FromContext(ctx).Error(err, "ConfigMap is unreadable and will be written again", "name", nodeIDsName)
		return nodeid.State{}, nil
	}
	return state, nil
}

func (n *nodeIDs) write(ctx context.Context, before, after nodeid.State) error {
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
		return fmt.Errorf("writing ConfigMap %s/%s: %w", n.namespace, nodeIDsName, err)
	}
	n.stored = changed
	return nil
}
