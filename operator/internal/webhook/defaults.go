// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/millrace-lb/millrace/operator/review"
)

// An operation (RFC 6902) changes one field and preserves others, also of newer API versions.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// setDefaults leaves the Service unchanged after an error.
func (h *handler) setDefaults(ctx context.Context, request admission.Request) admission.Response {
	response := admission.Allowed("")
	changes, warnings, err := h.defaults(ctx, request)
	if err == nil && len(changes) > 0 {
		response.Patch, err = patch(changes)
		of := admissionv1.PatchTypeJSONPatch
		response.PatchType = &of
	}
	if err != nil {
		h.logger.Error(err, "Failed to compute defaults", "namespace", request.Namespace, "name", request.Name)
		return admission.Allowed("")
	}
	return response.WithWarnings(warnings...)
}

func (h *handler) defaults(ctx context.Context, request admission.Request) ([]review.Change, []string, error) {
	service, before, err := h.services(request)
	if err != nil {
		return nil, nil, err
	}
	namespace, state, err := h.namespaceState(ctx, request.Namespace)
	if err != nil {
		return nil, nil, err
	}
	changes, warnings := review.Defaults(h.class, review.Write{Service: service, Before: before}, namespace, state)
	return changes, warnings, nil
}

func patch(changes []review.Change) ([]byte, error) {
	operations := make([]operation, 0, len(changes))
	for _, change := range changes {
		operations = append(operations, operation{Op: "add", Path: "/spec/" + change.Field, Value: change.Value})
	}
	return json.Marshal(operations)
}
