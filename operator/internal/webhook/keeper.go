// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/operator/internal/certificate"
)

const checkInterval = 5 * time.Second

// A keeper renews the certificate and sets caBundle, on the leader. Failures only cost warnings.
type keeper struct {
	// live reads past the caches: the operator may not list objects of these kinds.
	live      client.Reader
	client    client.Client
	namespace string
	emitter   eventEmitter
	logger    logr.Logger
}

// KeepCertificate adds the keeper to a manager. namespace is that of the Service.
func KeepCertificate(mgr ctrl.Manager, namespace string) error {
	return mgr.Add(&keeper{
		live: mgr.GetAPIReader(), client: mgr.GetClient(), namespace: namespace,
		emitter: newEventEmitter(mgr, namespace), logger: mgr.GetLogger().WithName("webhook"),
	})
}

func (k *keeper) Start(ctx context.Context) error {
	poll(ctx, func() {
		if err := k.keep(ctx); err != nil && ctx.Err() == nil {
			k.logger.Error(err, "Failed to renew the webhook certificate; retrying", "after", checkInterval.String())
		}
	})
	return nil
}

// poll calls f immediately and then every checkInterval until ctx ends.
func poll(ctx context.Context, f func()) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		f()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (k *keeper) keep(ctx context.Context) error {
	data, renewed, err := k.keepSecret(ctx)
	if err != nil {
		return err
	}
	configurations, err := readConfigurations(ctx, k.live)
	if err != nil {
		return err
	}
	bundle := certificate.Trusted(data)
	for _, configuration := range configurations {
		changed, foreign := false, false
		for _, call := range configuration.calls {
			if !bytes.Equal(call.CABundle, bundle) {
				foreign = foreign || len(call.CABundle) > 0
				call.CABundle, changed = bundle, true
			}
		}
		if !changed {
			continue
		}
		if err := k.client.Update(ctx, configuration.object); err != nil {
			return fmt.Errorf("write caBundle of the %s %s: %w", configuration.kind, configuration.name, err)
		}
		// A replica that was stopped between its two writes leaves the same state, which is reported, too.
		if foreign && !renewed {
			message := fmt.Sprintf("restored caBundle of the %s %s, which did not match the operator's certificate",
				configuration.kind, configuration.name)
			k.logger.Info(message)
			k.emitter.event(ctx, corev1.EventTypeWarning, reasonRestored, "Restore", message)
		}
	}
	return nil
}

func (k *keeper) keepSecret(ctx context.Context) (data map[string][]byte, renewed bool, err error) {
	secret := &corev1.Secret{}
	err = k.live.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: serviceName}, secret)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return nil, false, fmt.Errorf("read the Secret %s: %w", serviceName, err)
	}
	data, changed, err := certificate.Renew(time.Now(), hostOf(serviceName, k.namespace), secret.Data)
	if err != nil || !changed {
		return data, false, err
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
		return nil, false, fmt.Errorf("write the Secret %s: %w", serviceName, err)
	}
	k.logger.Info("Renewed the webhook certificate", "secret", serviceName)
	return data, true, nil
}
