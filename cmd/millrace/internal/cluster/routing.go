// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// ReadRouting reads the gateway's input without Secrets and kinds that are not installed, without rights for
// the whole cluster that of one namespace. A remark lists the kinds that the user may not list.
func ReadRouting(ctx context.Context, config Config) (*routing.Input, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return nil, err
	}
	scoped, err := config.scoped(reader)
	if err != nil {
		return nil, err
	}
	in := &routing.Input{Namespace: config.Namespace}
	for _, read := range []func(context.Context, client.Reader, *routing.Input) error{readBuiltin, readGatewayAPI, readConfigMaps} {
		if err := read(ctx, scoped, in); err != nil {
			return nil, config.explain(restConfig.Host, err)
		}
	}
	if err := scoped.errNoRights(config, restConfig.Host); err != nil {
		return nil, err
	}
	if err := readLimits(ctx, scoped, in); err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	in.Restrict(scoped.sole(), scoped.omittedKinds())
	return in, nil
}

func readBuiltin(ctx context.Context, reader client.Reader, in *routing.Input) error {
	var (
		classes    networkingv1.IngressClassList
		ingresses  networkingv1.IngressList
		services   corev1.ServiceList
		namespaces corev1.NamespaceList
		endpoints  discoveryv1.EndpointSliceList
	)
	err := list(ctx, reader, []client.ObjectList{&classes, &ingresses, &services, &namespaces, &endpoints})
	o := &in.Objects
	o.IngressClasses, o.Ingresses = pointers(classes.Items), pointers(ingresses.Items)
	o.Services, o.Namespaces = pointers(services.Items), pointers(namespaces.Items)
	in.EndpointSlices = pointers(endpoints.Items)
	return err
}

func readGatewayAPI(ctx context.Context, reader client.Reader, in *routing.Input) error {
	var (
		classes  gatewayv1.GatewayClassList
		gateways gatewayv1.GatewayList
		sets     gatewayv1.ListenerSetList
		https    gatewayv1.HTTPRouteList
		grpcs    gatewayv1.GRPCRouteList
		tlss     gatewayv1.TLSRouteList
		tcps     gatewayv1.TCPRouteList
		udps     gatewayv1.UDPRouteList
		grants   gatewayv1.ReferenceGrantList
		policies gatewayv1.BackendTLSPolicyList
	)
	group, ctx := errgroup.WithContext(ctx)
	for _, objects := range []client.ObjectList{&classes, &gateways, &sets, &https, &grpcs, &tlss, &tcps, &udps, &grants, &policies} {
		group.Go(func() error {
			// Kinds of the experimental channel may not be installed.
			return client.IgnoreNotFound(reader.List(ctx, objects))
		})
	}
	err := group.Wait()
	o := &in.Objects
	o.GatewayClasses, o.Gateways, o.ListenerSets = pointers(classes.Items), pointers(gateways.Items), pointers(sets.Items)
	o.HTTPRoutes, o.GRPCRoutes, o.TLSRoutes = pointers(https.Items), pointers(grpcs.Items), pointers(tlss.Items)
	o.TCPRoutes, o.UDPRoutes = pointers(tcps.Items), pointers(udps.Items)
	o.ReferenceGrants, o.BackendTLSPolicies = pointers(grants.Items), pointers(policies.Items)
	return err
}

// gatewayDeployment is the gateway's Deployment in Millrace's namespace.
const gatewayDeployment = "millrace-gateway"

func readLimits(ctx context.Context, reader *scopedReader, in *routing.Input) error {
	found := &appsv1.Deployment{}
	name := types.NamespacedName{Namespace: in.Namespace, Name: gatewayDeployment}
	err := reader.Get(ctx, name, found)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err) && reader.sole() != "":
		return nil
	case apierrors.IsForbidden(err):
		in.Remarks = append(in.Remarks, fmt.Sprintf("the default limits of namespaces are used: you may not read the Deployment %s", name))
		return nil
	case err != nil:
		return err
	}
	for i := range found.Spec.Template.Spec.Containers {
		arguments := found.Spec.Template.Spec.Containers[i].Args
		for flag, into := range map[string]*int64{
			"--max-namespace-configuration": &in.NamespaceBytes, "--max-proxy-configuration": &in.ProxyBytes,
		} {
			if err := readQuantity(arguments, flag, into); err != nil {
				in.Remarks = append(in.Remarks, fmt.Sprintf("the default limits of namespaces are used: Deployment %s: %v", name, err))
			}
		}
	}
	return nil
}

func readQuantity(arguments []string, flag string, into *int64) error {
	for i, argument := range arguments {
		value, found := strings.CutPrefix(argument, flag+"=")
		if argument == flag && i+1 < len(arguments) {
			value, found = arguments[i+1], true
		}
		if !found {
			continue
		}
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			return fmt.Errorf("%s %q: %w", flag, value, err)
		}
		*into = quantity.Value()
	}
	return nil
}

// readConfigMaps gets only the ConfigMaps that objects refer to, because clusters have many others.
func readConfigMaps(ctx context.Context, reader client.Reader, in *routing.Input) error {
	var (
		mutex  sync.Mutex
		unread []string
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(10)
	for _, name := range referredConfigMaps(&in.Objects) {
		group.Go(func() error {
			found := &corev1.ConfigMap{}
			err := reader.Get(ctx, name, found)
			mutex.Lock()
			defer mutex.Unlock()
			switch {
			case err == nil:
				in.Objects.ConfigMaps = append(in.Objects.ConfigMaps, found)
			case apierrors.IsNotFound(err):
			case apierrors.IsForbidden(err):
				unread = append(unread, name.String())
			default:
				return err
			}
			return nil
		})
	}
	err := group.Wait()
	slices.Sort(unread)
	for _, name := range unread {
		in.Remarks = append(in.Remarks, fmt.Sprintf("ConfigMap %s is treated as missing: you may not read it", name))
	}
	return err
}

type configMapNames map[types.NamespacedName]bool

func (n configMapNames) add(namespace, kind, name string) {
	if kind == "ConfigMap" {
		n[types.NamespacedName{Namespace: namespace, Name: name}] = true
	}
}

func referredConfigMaps(objects *model.Objects) []types.NamespacedName {
	found := configMapNames{}
	for _, class := range objects.IngressClasses {
		if from := class.Spec.Parameters; from != nil && from.Namespace != nil && class.Spec.Controller == model.IngressController {
			found.add(*from.Namespace, from.Kind, from.Name)
		}
	}
	for _, class := range objects.GatewayClasses {
		if from := class.Spec.ParametersRef; from != nil && from.Namespace != nil && class.Spec.ControllerName == model.GatewayController {
			found.add(string(*from.Namespace), string(from.Kind), from.Name)
		}
	}
	for _, gateway := range objects.Gateways {
		found.addGateway(gateway)
	}
	for _, policy := range objects.BackendTLSPolicies {
		for _, from := range policy.Spec.Validation.CACertificateRefs {
			found.add(policy.Namespace, string(from.Kind), string(from.Name))
		}
	}
	return slices.Collect(maps.Keys(found))
}

func (n configMapNames) addGateway(gateway *gatewayv1.Gateway) {
	if gateway.Spec.Infrastructure != nil && gateway.Spec.Infrastructure.ParametersRef != nil {
		from := gateway.Spec.Infrastructure.ParametersRef
		n.add(gateway.Namespace, string(from.Kind), from.Name)
	}
	for _, from := range frontendAuthorities(gateway) {
		namespace := gateway.Namespace
		if from.Namespace != nil {
			namespace = string(*from.Namespace)
		}
		n.add(namespace, string(from.Kind), string(from.Name))
	}
}

func frontendAuthorities(gateway *gatewayv1.Gateway) []gatewayv1.ObjectReference {
	if gateway.Spec.TLS == nil || gateway.Spec.TLS.Frontend == nil {
		return nil
	}
	var found []gatewayv1.ObjectReference
	add := func(config gatewayv1.TLSConfig) {
		if config.Validation != nil {
			found = append(found, config.Validation.CACertificateRefs...)
		}
	}
	add(gateway.Spec.TLS.Frontend.Default)
	for _, port := range gateway.Spec.TLS.Frontend.PerPort {
		add(port.TLS)
	}
	return found
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}
