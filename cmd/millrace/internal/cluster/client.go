// SPDX-License-Identifier: Apache-2.0

// Package cluster reads a cluster through its API server.
package cluster

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Config selects the cluster.
type Config struct {
	// Kubeconfig is a file; empty: KUBECONFIG, ~/.kube/config, then the pod's service account.
	Kubeconfig string
	// Context of the kubeconfig; empty: its current context.
	Context   string
	Namespace string
	// Scope is the namespace that is read without rights for the whole cluster; empty: the context's.
	Scope   string
	Timeout time.Duration
	// Cluster and User are names in the kubeconfig; empty: those of the context.
	Cluster, User string
	// As, AsUID and AsGroups are the identity to impersonate, if any.
	As, AsUID string
	AsGroups  []string
}

// Read reads the input of a report, without rights for the whole cluster that of one namespace. An error is
// one sentence with advice.
func Read(ctx context.Context, config Config) (*report.Input, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return nil, err
	}
	scoped, err := config.scoped(reader)
	if err != nil {
		return nil, err
	}
	in, err := read(ctx, scoped, config.Namespace, inputKinds())
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	if err := scoped.errNoRights(config, restConfig.Host); err != nil {
		return nil, err
	}
	in.Sole, in.Omitted = scoped.sole(), scoped.omittedKinds()
	in.AddVIPs()
	return in, nil
}

// CurrentNamespace returns the namespace of the context, kubectl's default.
func CurrentNamespace(config Config) (string, error) {
	namespace, _, err := config.loading().Namespace()
	if err != nil {
		return "", explainConfig(err)
	}
	return namespace, nil
}

// VIPs lists the VIPs.
func VIPs(ctx context.Context, config Config) ([]millracev1beta1.VIP, error) {
	var vips millracev1beta1.VIPList
	err := readList(ctx, config, &vips)
	return vips.Items, err
}

// Services lists the Services of all namespaces.
func Services(ctx context.Context, config Config) ([]corev1.Service, error) {
	var services corev1.ServiceList
	err := readList(ctx, config, &services)
	return services.Items, err
}

// Nodes lists the names of the LBNodes.
func Nodes(ctx context.Context, config Config) ([]string, error) {
	var nodes millracev1beta1.LBNodeList
	err := readList(ctx, config, &nodes)
	names := make([]string, 0, len(nodes.Items))
	for _, node := range nodes.Items {
		names = append(names, node.Name)
	}
	return names, err
}

// SelectNodes returns the names of the Nodes with labels.
func SelectNodes(ctx context.Context, config Config, selector labels.Selector) (map[string]bool, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	names := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		names[nodes.Items[i].Name] = true
	}
	return names, nil
}

// Reports lists the LBNodeReports, and the LBNodes.
func Reports(ctx context.Context, config Config) ([]millracev1beta1.LBNodeReport, []millracev1beta1.LBNode, error) {
	var reports millracev1beta1.LBNodeReportList
	var nodes millracev1beta1.LBNodeList
	if err := readList(ctx, config, &reports); err != nil {
		return nil, nil, err
	}
	err := readList(ctx, config, &nodes)
	return reports.Items, nodes.Items, err
}

// Pools lists the names of the VIPPools.
func Pools(ctx context.Context, config Config) ([]string, error) {
	var pools millracev1beta1.VIPPoolList
	err := readList(ctx, config, &pools)
	names := make([]string, 0, len(pools.Items))
	for _, pool := range pools.Items {
		names = append(names, pool.Name)
	}
	return names, err
}

func readList(ctx context.Context, config Config, objects client.ObjectList) error {
	restConfig, reader, err := config.client()
	if err != nil {
		return err
	}
	if err := reader.List(ctx, objects); err != nil {
		return config.explain(restConfig.Host, err)
	}
	return nil
}

func (c Config) client() (*rest.Config, client.Reader, error) {
	restConfig, err := c.rest()
	if err != nil {
		return nil, nil, explainConfig(err)
	}
	reader, err := newClient(restConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	return restConfig, reader, nil
}

func (c Config) loading() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	overrides.Context.Cluster, overrides.Context.AuthInfo = c.Cluster, c.User
	overrides.AuthInfo.Impersonate, overrides.AuthInfo.ImpersonateUID = c.As, c.AsUID
	overrides.AuthInfo.ImpersonateGroups = c.AsGroups
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

func (c Config) rest() (*rest.Config, error) {
	config, err := c.loading().ClientConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = c.Timeout
	config.UserAgent = "millrace"
	return config, nil
}

// newClient returns a client without discovery, because the resources are known.
func newClient(config *rest.Config) (client.Reader, error) {
	scheme, mapper, err := kinds()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
}

// kinds returns the scheme and the REST mappings of all kinds that are read.
func kinds() (*runtime.Scheme, meta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, gatewayv1.Install, millracev1beta1.AddToScheme,
		livev1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, nil, err
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Service", "Pod", "ConfigMap"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	// A cache of one namespace looks up the scope of the list kind.
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PodList"), meta.RESTScopeNamespace)
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	mapper.Add(millracev1beta1.GroupVersion.WithKind("VIPRoute"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(networkingv1.SchemeGroupVersion.WithKind("IngressClass"), meta.RESTScopeRoot)
	mapper.Add(networkingv1.SchemeGroupVersion.WithKind("Ingress"), meta.RESTScopeNamespace)
	gatewayAPI := schema.GroupVersion(gatewayv1.GroupVersion)
	mapper.Add(gatewayAPI.WithKind("GatewayClass"), meta.RESTScopeRoot)
	// The mapper would derive the plural "gatewaies".
	mapper.AddSpecific(gatewayAPI.WithKind("Gateway"), gatewayAPI.WithResource("gateways"),
		gatewayAPI.WithResource("gateway"), meta.RESTScopeNamespace)
	for _, kind := range []string{
		"ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute", "ReferenceGrant", "BackendTLSPolicy",
	} {
		mapper.Add(gatewayAPI.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"VIPPool", "VIP", "LBPeer", "VIPAdvertisement", "LBNode", "LBNodeReport"} {
		mapper.Add(millracev1beta1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	for _, kind := range []string{"VIPAnnouncement", "BGPSession"} {
		mapper.Add(livev1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	// The plural of ServiceTraffic equals the singular.
	traffic := livev1alpha1.GroupVersion.WithResource(livev1alpha1.ResourceServiceTraffic)
	mapper.AddSpecific(livev1alpha1.GroupVersion.WithKind("ServiceTraffic"), traffic, traffic, meta.RESTScopeNamespace)
	return scheme, mapper, nil
}

// read lists kinds concurrently and returns the error of the first failed kind.
func read(ctx context.Context, reader client.Reader, namespace string, kinds []inputKind, options ...client.ListOption) (*report.Input, error) {
	in := &report.Input{Namespace: namespace}
	lists, errs := make([]client.ObjectList, len(kinds)), make([]error, len(kinds))
	var group errgroup.Group
	for i, kind := range kinds {
		lists[i] = kind.list()
		group.Go(func() error {
			errs[i] = reader.List(ctx, lists[i], kind.options(namespace, options...)...)
			return nil
		})
	}
	_ = group.Wait()
	for i, kind := range kinds {
		if errs[i] != nil {
			return nil, errs[i]
		}
		kind.put(lists[i], in)
	}
	return in, nil
}

func list(ctx context.Context, reader client.Reader, lists []client.ObjectList, options ...client.ListOption) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, objects := range lists {
		group.Go(func() error { return reader.List(ctx, objects, options...) })
	}
	return group.Wait()
}

// Name returns the name of the context, or else the host of the API server.
func Name(config Config) string {
	raw, err := config.loading().RawConfig()
	if err == nil && (config.Context != "" || raw.CurrentContext != "") {
		return cmp.Or(config.Context, raw.CurrentContext)
	}
	if restConfig, err := config.rest(); err == nil {
		return restConfig.Host
	}
	return ""
}
