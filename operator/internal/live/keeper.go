// SPDX-License-Identifier: Apache-2.0

// Package live creates and renews the certificates of the aggregated API live.millrace.io, distributes
// them to the aggregated API and the agents, and sets the caBundle of the APIService.
package live

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/operator/internal/certificate"
)

const (
	serviceName    = "millrace-liveapi"
	apiServiceName = "v1alpha1.live.millrace.io"
	// secretName is the Secret with all certificates, which is not mounted. The other two are mounted.
	secretName       = "millrace-live-certificates"
	apiSecretName    = "millrace-live-api"
	agentsSecretName = "millrace-live-agents"
)

const checkInterval = 5 * time.Second

// A keeper maintains the certificates on the leader.
type keeper struct {
	// live reads past the caches: the operator may not list objects of these kinds.
	live      client.Reader
	client    client.Client
	namespace string
	logger    logr.Logger
}

// KeepCertificates adds the keeper to a manager. namespace is that of the Service.
func KeepCertificates(mgr ctrl.Manager, namespace string) error {
	return mgr.Add(&keeper{
		live: mgr.GetAPIReader(), client: mgr.GetClient(), namespace: namespace,
		logger: mgr.GetLogger().WithName("live"),
	})
}

func (k *keeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		if err := k.keep(ctx); err != nil && ctx.Err() == nil {
			k.logger.Error(err, "Failed to renew the certificates of the aggregated API; retrying", "after", checkInterval.String())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// keep may write the objects in any order, because a new CA is distributed a day before its first use.
func (k *keeper) keep(ctx context.Context) error {
	var all map[string][]byte
	host := fmt.Sprintf("%s.%s.svc", serviceName, k.namespace)
	err := k.keepSecret(ctx, secretName, corev1.SecretTypeOpaque, func(data map[string][]byte) (_ map[string][]byte, err error) {
		all, _, err = certificate.RenewLive(time.Now(), host, data)
		return all, err
	})
	if err != nil {
		return err
	}
	for name, wanted := range map[string]map[string][]byte{
		apiSecretName: certificate.LiveAPI(all), agentsSecretName: certificate.LiveAgents(all),
	} {
		err := k.keepSecret(ctx, name, corev1.SecretTypeTLS, func(map[string][]byte) (map[string][]byte, error) { return wanted, nil })
		if err != nil {
			return err
		}
	}
	return k.keepTrust(ctx, certificate.LiveTrusted(all))
}

func (k *keeper) keepSecret(
	ctx context.Context, name string, kind corev1.SecretType, wanted func(data map[string][]byte) (map[string][]byte, error),
) error {
	secret := &corev1.Secret{}
	err := k.live.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: name}, secret)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("read the Secret %s: %w", name, err)
	}
	data, err := wanted(secret.Data)
	if err != nil || !absent && maps.EqualFunc(data, secret.Data, bytes.Equal) {
		return err
	}
	secret.Data = data
	if absent {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.namespace, Name: name}
		secret.Type = kind
		err = k.client.Create(ctx, secret)
	} else {
		err = k.client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("write the Secret %s: %w", name, err)
	}
	k.logger.Info("Renewed certificates of the aggregated API", "secret", name)
	return nil
}

// keepTrust sets the caBundle of an existing APIService; uninstalling removes it first.
func (k *keeper) keepTrust(ctx context.Context, bundle []byte) error {
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	err := k.live.Get(ctx, client.ObjectKey{Name: apiServiceName}, service)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the APIService %s: %w", apiServiceName, err)
	}
	encoded := base64.StdEncoding.EncodeToString(bundle)
	if present, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle"); present == encoded {
		return nil
	}
	before := service.DeepCopy()
	if err := unstructured.SetNestedField(service.Object, encoded, "spec", "caBundle"); err != nil {
		return fmt.Errorf("write caBundle of the APIService %s: %w", apiServiceName, err)
	}
	if err := k.client.Patch(ctx, service, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write caBundle of the APIService %s: %w", apiServiceName, err)
	}
	k.logger.Info("The API server trusts the certificates of the aggregated API", "apiService", apiServiceName)
	return nil
}
