// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/operator/internal/certificate"
)

// Names of config/webhook.
const (
	configurationName = "millrace-warnings"
	// serviceName is that of the Service, and of the Secret that replicas mount.
	serviceName = "millrace-webhook"
)

// keepEvery is how often the Secret and the configuration are looked at.
const keepEvery = 10 * time.Second

// keeper makes and renews the certificate, and has the API server trust it. The leader does it. It
// never ends before the operator: without a certificate there are no warnings, and nothing else.
type keeper struct {
	// live reads past the caches: the operator may read these objects alone, not all of their kind.
	live      client.Reader
	client    client.Client
	namespace string
	logger    logr.Logger
}

// KeepCertificate adds to a manager that the webhook's certificate is made and renewed. The
// namespace is that of the Service.
func KeepCertificate(mgr ctrl.Manager, namespace string) error {
	return mgr.Add(&keeper{
		live: mgr.GetAPIReader(), client: mgr.GetClient(), namespace: namespace, logger: mgr.GetLogger().WithName("webhook"),
	})
}

// Start implements manager.Runnable.
func (k *keeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		if err := k.keep(ctx); err != nil && ctx.Err() == nil {
			k.logger.Error(err, "the certificate of the webhook is tried again", "after", keepEvery.String())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (k *keeper) keep(ctx context.Context) error {
	data, err := k.keepSecret(ctx)
	if err != nil {
		return err
	}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := k.live.Get(ctx, client.ObjectKey{Name: configurationName}, configuration); err != nil {
		return fmt.Errorf("reading the ValidatingWebhookConfiguration %s: %w", configurationName, err)
	}
	bundle, changed := certificate.Trusted(data), false
	for i := range configuration.Webhooks {
		if called := &configuration.Webhooks[i].ClientConfig; !bytes.Equal(called.CABundle, bundle) {
			called.CABundle, changed = bundle, true
		}
	}
	if !changed {
		return nil
	}
	if err := k.client.Update(ctx, configuration); err != nil {
		return fmt.Errorf("writing caBundle of the ValidatingWebhookConfiguration %s: %w", configurationName, err)
	}
	return nil
}

// keepSecret returns what the Secret has by now.
func (k *keeper) keepSecret(ctx context.Context) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := k.live.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: serviceName}, secret)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return nil, fmt.Errorf("reading the Secret %s: %w", serviceName, err)
	}
	data, changed, err := certificate.Renew(time.Now(), fmt.Sprintf("%s.%s.svc", serviceName, k.namespace), secret.Data)
	if err != nil || !changed {
		return data, err
	}
	secret.Data = data
	if absent {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.namespace, Name: serviceName}
		secret.Type = corev1.SecretTypeTLS
		err = k.client.Create(ctx, secret)
	} else {
		err = k.client.Update(ctx, secret)
	}
	if err != nil {
		return nil, fmt.Errorf("writing the Secret %s: %w", serviceName, err)
	}
	k.logger.Info("the certificate of the webhook was made or renewed", "secret", serviceName)
	return data, nil
}
