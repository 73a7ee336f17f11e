// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// FieldOwner is the field manager of server-side apply.
const FieldOwner = "millrace-gateway"

// annotationApplied is a hash of the applied object, which makes the removal of a field visible as a
// difference.
const annotationApplied = "millrace.io/applied"

// errNameInUse is returned when an object of another owner has the name of one to be created.
var errNameInUse = errors.New("the name is taken")

// apply applies an object unless live, its cached state or nil, is as wanted.
func (w *Writer) apply(ctx context.Context, wanted infrastructure.Object, live client.Object) error {
	owner := wanted.GetAnnotations()[infrastructure.AnnotationOwner]
	if live == nil {
		if err := w.checkNameUnused(ctx, wanted, owner); err != nil {
			return err
		}
	} else if other := live.GetAnnotations()[infrastructure.AnnotationOwner]; other != owner {
		return fmt.Errorf("%w: %s belongs to %q: the names of two owners collide", errNameInUse, named(wanted), other)
	}
	if err := setAppliedHash(wanted); err != nil {
		return err
	}
	keepReplicas(wanted, live)
	configuration, err := configurationOf(wanted)
	if err != nil {
		return err
	}
	isOurs := func(present client.Object) bool { return isAsWanted(configuration.Object, wanted, present) }
	if live != nil && !w.canWrite(live, true, isOurs) {
		return nil
	}
	if _, ok := wanted.(*millracev1beta1.VIPRoute); ok && live != nil {
		// Draining was computed from the live object, so the write must fail if that is stale.
		configuration.SetResourceVersion(live.GetResourceVersion())
	}
	err = w.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(configuration),
		client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil && !w.isStaleConflict(err) {
		err = fmt.Errorf("apply %s: %w", named(wanted), err)
		if isUnauthorized(err) {
			err = fmt.Errorf("the gateway has no permission to run proxies in namespace %s; to grant it: %s (%w)",
				wanted.GetNamespace(), model.GrantCommand(model.RoleProxies, wanted.GetNamespace()), err)
		}
		return err
	}
	if err == nil && live != nil {
		w.recordWrite(live, isOurs)
	}
	return nil
}

// isUnauthorized reports a missing RBAC permission. Exceeded quotas are Forbidden too and differ only in the
// text.
func isUnauthorized(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ")
}

func named(object infrastructure.Object) string {
	return object.GetObjectKind().GroupVersionKind().Kind + " " + client.ObjectKeyFromObject(object).String()
}

// checkNameUnused reads past the cache, which is restricted to objects with the gateway's labels.
func (w *Writer) checkNameUnused(ctx context.Context, wanted infrastructure.Object, owner string) error {
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(wanted.GetObjectKind().GroupVersionKind())
	err := w.Live.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get %s: %w", named(wanted), err)
	case found.Annotations[infrastructure.AnnotationOwner] != owner:
		return fmt.Errorf("%w: %s exists and does not belong to %s: rename or delete it", errNameInUse, named(wanted), owner)
	}
	return nil
}

func setAppliedHash(wanted infrastructure.Object) error {
	content, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("write %T: %w", wanted, err)
	}
	sum := sha256.Sum256(content)
	annotations := maps.Clone(wanted.GetAnnotations())
	annotations[annotationApplied] = hex.EncodeToString(sum[:8])
	wanted.SetAnnotations(annotations)
	return nil
}

// keepReplicas keeps the autoscaler's replicas, because a field no longer applied resets to one.
func keepReplicas(wanted infrastructure.Object, live client.Object) {
	deployment, ok := wanted.(*appsv1.Deployment)
	if !ok || deployment.Spec.Replicas != nil {
		return
	}
	if before, ok := live.(*appsv1.Deployment); ok && before != nil {
		deployment.Spec.Replicas = before.Spec.Replicas
	}
}

// isAsWanted ignores fields added by others and defaults of the API server.
func isAsWanted(configuration map[string]any, wanted infrastructure.Object, live client.Object) bool {
	if reflect.TypeOf(wanted) != reflect.TypeOf(live) {
		return false
	}
	if route, ok := wanted.(*millracev1beta1.VIPRoute); ok {
		// A weight of zero is significant, but omitted from the unstructured form.
		other, same := live.(*millracev1beta1.VIPRoute)
		if !same || !equality.Semantic.DeepEqual(route.Spec, other.Spec) {
			return false
		}
	}
	has, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		// Not convertible: the write fails with the reason.
		return false
	}
	for field, value := range configuration {
		// Cached objects have no apiVersion and kind.
		if field != "apiVersion" && field != "kind" && !contains(has[field], value) {
			return false
		}
	}
	return true
}

// contains compares all fields of a JSON object, and the first elements of a list.
func contains(has, wanted any) bool {
	switch wanted := wanted.(type) {
	case nil:
		return true
	case map[string]any:
		fields, _ := has.(map[string]any)
		for name, value := range wanted {
			if !contains(fields[name], value) {
				return false
			}
		}
		return true
	case []any:
		elements, _ := has.([]any)
		if len(elements) < len(wanted) {
			return false
		}
		for i := range wanted {
			if !contains(elements[i], wanted[i]) {
				return false
			}
		}
		return true
	}
	return has == wanted
}

func configurationOf(wanted infrastructure.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return nil, fmt.Errorf("write %T: %w", wanted, err)
	}
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: content}, nil
}
