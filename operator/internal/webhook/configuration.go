// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"net/url"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	warningsName = "millrace-warnings"
	defaultsName = "millrace-service-defaults"
	// serviceName is the name of the Service, and of the Secret that replicas mount.
	serviceName = "millrace-webhook"
)

// A configuration is a webhook configuration of the API server.
type configuration struct {
	object     client.Object
	kind, name string
	calls      []*admissionregistrationv1.WebhookClientConfig
}

func readConfigurations(ctx context.Context, reader client.Reader) ([]configuration, error) {
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := reader.Get(ctx, client.ObjectKey{Name: warningsName}, validating); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the ValidatingWebhookConfiguration %s: %w", warningsName, err)
	}
	warnings := configuration{object: validating, kind: "ValidatingWebhookConfiguration", name: warningsName}
	for i := range validating.Webhooks {
		warnings.calls = append(warnings.calls, &validating.Webhooks[i].ClientConfig)
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := reader.Get(ctx, client.ObjectKey{Name: defaultsName}, mutating); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the MutatingWebhookConfiguration %s: %w", defaultsName, err)
	}
	defaults := configuration{object: mutating, kind: "MutatingWebhookConfiguration", name: defaultsName}
	for i := range mutating.Webhooks {
		defaults.calls = append(defaults.calls, &mutating.Webhooks[i].ClientConfig)
	}
	return []configuration{warnings, defaults}, nil
}

func serverName(call *admissionregistrationv1.WebhookClientConfig) string {
	if call.Service != nil {
		return hostOf(call.Service.Name, call.Service.Namespace)
	}
	if call.URL == nil {
		return ""
	}
	parsed, err := url.Parse(*call.URL)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

func hostOf(service, namespace string) string { return fmt.Sprintf("%s.%s.svc", service, namespace) }
