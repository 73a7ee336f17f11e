// SPDX-License-Identifier: Apache-2.0

// Package cluster reads what the report needs from an API server.
package cluster

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Config says which cluster is read.
type Config struct {
	// Kubeconfig is a file; empty: KUBECONFIG, then ~/.kube/config, then the
	// service account of the pod that this runs in.
	Kubeconfig string
	// Context of the kubeconfig; empty: its current one.
	Context string
	// Namespace that Millrace is installed in.
	Namespace string
	// Timeout of one request.
	Timeout time.Duration
}

// Read reads everything that a report is made of. An error is one sentence
// that says what to do.
func Read(ctx context.Context, config Config) (*report.Input, error) {
	restConfig, err := config.rest()
	if err != nil {
		return nil, explainConfig(err)
	}
	reader, err := newClient(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", restConfig.Host, err)
	}
	in, err := read(ctx, reader, config.Namespace)
	if err != nil {
		return nil, explain(restConfig.Host, err)
	}
	return in, nil
}

func (c Config) rest() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = c.Timeout
	config.UserAgent = "millrace"
	return config, nil
}

// newClient makes a client that asks the API server for nothing but what it
// is told to: the resources are known beforehand, so there is no discovery.
func newClient(config *rest.Config) (client.Reader, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, millracev1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Service", "Pod"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	for _, kind := range []string{"IPPool", "VIP", "BGPPeer", "BGPAdvertisement", "LBNode"} {
		mapper.Add(millracev1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
}

// read lists all kinds at once, our own first: where they are missing, that
// is what there is to say.
func read(ctx context.Context, reader client.Reader, namespace string) (*report.Input, error) {
	var (
		pools          millracev1alpha1.IPPoolList
		vips           millracev1alpha1.VIPList
		peers          millracev1alpha1.BGPPeerList
		advertisements millracev1alpha1.BGPAdvertisementList
		nodes          millracev1alpha1.LBNodeList
		services       corev1.ServiceList
		endpointSlices discoveryv1.EndpointSliceList
		pods           corev1.PodList
	)
	own := []client.ObjectList{&pools, &vips, &peers, &advertisements, &nodes}
	if err := list(ctx, reader, own); err != nil {
		return nil, err
	}
	if err := list(ctx, reader, []client.ObjectList{&services, &endpointSlices}); err != nil {
		return nil, err
	}
	if err := list(ctx, reader, []client.ObjectList{&pods}, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return &report.Input{
		Namespace:      namespace,
		Services:       services.Items,
		EndpointSlices: endpointSlices.Items,
		Pods:           pods.Items,
		Pools:          pools.Items,
		VIPs:           vips.Items,
		Peers:          peers.Items,
		Advertisements: advertisements.Items,
		LBNodes:        nodes.Items,
	}, nil
}

func list(ctx context.Context, reader client.Reader, lists []client.ObjectList, options ...client.ListOption) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, objects := range lists {
		group.Go(func() error { return reader.List(ctx, objects, options...) })
	}
	return group.Wait()
}
