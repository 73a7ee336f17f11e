// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// SetDrain sets or removes the drain annotation of a Node. It changes no other field.
func SetDrain(ctx context.Context, config Config, node string, drain bool) error {
	var value any
	if drain {
		value = ""
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{millracev1beta1.AnnotationDrain: value}},
	})
	if err != nil {
		return fmt.Errorf("encode the annotation: %w", err)
	}
	restConfig, _, err := config.client()
	if err != nil {
		return err
	}
	scheme, mapper, err := kinds()
	if err != nil {
		return err
	}
	writer, err := client.New(restConfig, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := writer.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return config.explainServer(ctx, restConfig.Host, err)
	}
	return nil
}

// DrainReason returns spec.drainReason of the node's LBNode; empty if the node is not drained.
func DrainReason(ctx context.Context, config Config, node string) (millracev1beta1.DrainReason, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return "", err
	}
	var object millracev1beta1.LBNode
	if err := reader.Get(ctx, client.ObjectKey{Name: node}, &object); err != nil {
		return "", config.explainServer(ctx, restConfig.Host, err)
	}
	return object.Spec.DrainReason, nil
}
