// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/write"
	"github.com/millrace-lb/millrace/gateway/nginx"
)

func managerOptions(configuration Config, scheme *runtime.Scheme, logger logr.Logger) ctrl.Options {
	return ctrl.Options{
		Scheme:                        scheme,
		Logger:                        logger,
		LeaderElection:                configuration.LeaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       configuration.Namespace,
		LeaderElectionReleaseOnCancel: true,
		// Package managed serves the metrics.
		Metrics: metricsserver.Options{BindAddress: "0"},
		Client:  client.Options{FieldOwner: write.FieldOwner},
		Cache:   cacheOptions(),
	}
}

func cacheOptions() cache.Options {
	proxies := cache.ByObject{Label: labels.SelectorFromSet(infrastructure.Selector())}
	pods := &metav1.PartialObjectMetadata{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}:                      {Transform: stripConfigMap},
			&corev1.Namespace{}:                      {Transform: stripNamespace},
			&discoveryv1.EndpointSlice{}:             {Transform: stripSlice},
			pods:                                     proxies,
			&corev1.ServiceAccount{}:                 proxies,
			&appsv1.Deployment{}:                     proxies,
			&policyv1.PodDisruptionBudget{}:          proxies,
			&autoscalingv2.HorizontalPodAutoscaler{}: proxies,
			&millracev1beta1.VIPRoute{}:              proxies,
		},
	}
}

func stripSecret(object any) (any, error) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return object, nil
	}
	stripped := &corev1.Secret{TypeMeta: secret.TypeMeta, ObjectMeta: stripMeta(&secret.ObjectMeta), Type: secret.Type, Data: map[string][]byte{}}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if content, found := secret.Data[key]; found {
			stripped.Data[key] = content
		}
	}
	return stripped, nil
}

// secretInformer selects a type and a namespace; "" means all.
func secretInformer(core toolscache.Getter, namespace string, kind corev1.SecretType) (toolscache.SharedIndexInformer, error) {
	listed := toolscache.NewFilteredListWatchFromClient(core, "secrets", namespace, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("type", string(kind)).String()
	})
	strip := stripSecret
	if kind == corev1.SecretTypeOpaque {
		strip = stripUsers
	}
	informer := toolscache.NewSharedIndexInformer(listed, &corev1.Secret{}, 0, toolscache.Indexers{})
	return informer, informer.SetTransform(strip)
}

// stripUsers retains password hashes, and only the names of other keys.
func stripUsers(object any) (any, error) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return object, nil
	}
	stripped := &corev1.Secret{TypeMeta: secret.TypeMeta, ObjectMeta: stripMeta(&secret.ObjectMeta), Type: secret.Type, Data: map[string][]byte{}}
	for name, content := range secret.Data {
		if name != nginx.UsersKey && !nginx.IsHash(string(content)) {
			content = nil
		}
		stripped.Data[name] = content
	}
	return stripped, nil
}

func stripConfigMap(object any) (any, error) {
	configMap, ok := object.(*corev1.ConfigMap)
	if !ok {
		return object, nil
	}
	stripped := *configMap
	stripped.BinaryData, stripped.ManagedFields = nil, nil
	return &stripped, nil
}

// stripNamespace retains the labels for the admission of routes.
func stripNamespace(object any) (any, error) {
	namespace, ok := object.(*corev1.Namespace)
	if !ok {
		return object, nil
	}
	stripped := &corev1.Namespace{TypeMeta: namespace.TypeMeta, ObjectMeta: stripMeta(&namespace.ObjectMeta)}
	stripped.Labels = namespace.Labels
	return stripped, nil
}

func stripSlice(object any) (any, error) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return object, nil
	}
	stripped := &discoveryv1.EndpointSlice{
		TypeMeta: slice.TypeMeta, ObjectMeta: stripMeta(&slice.ObjectMeta),
		AddressType: slice.AddressType, Ports: slice.Ports,
	}
	stripped.Labels = map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]}
	if slice.Labels[discoveryv1.LabelManagedBy] == infrastructure.ManagedBy {
		// The writer compares its own slices with their desired state.
		stripped.Labels, stripped.Annotations, stripped.OwnerReferences = slice.Labels, slice.Annotations, slice.OwnerReferences
	}
	for _, endpoint := range slice.Endpoints {
		stripped.Endpoints = append(stripped.Endpoints, discoveryv1.Endpoint{
			Addresses: endpoint.Addresses, Conditions: endpoint.Conditions, NodeName: endpoint.NodeName,
		})
	}
	return stripped, nil
}

func stripMeta(object *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         object.Namespace,
		Name:              object.Name,
		UID:               object.UID,
		ResourceVersion:   object.ResourceVersion,
		Generation:        object.Generation,
		CreationTimestamp: object.CreationTimestamp,
		DeletionTimestamp: object.DeletionTimestamp,
	}
}
