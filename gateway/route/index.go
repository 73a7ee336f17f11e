// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/gateway/resource"
)

type index struct {
	services map[types.NamespacedName]*corev1.Service
	secrets  map[types.NamespacedName]*corev1.Secret
	users    map[types.NamespacedName]*corev1.Secret
	// readable are the namespaces whose Secrets the gateway may read; nil means all.
	readable   map[string]bool
	configMaps map[types.NamespacedName]*corev1.ConfigMap
	namespaces map[string]labels.Set
	// grants are keyed by the namespace of the ReferenceGrant, which is the namespace of its targets.
	grants map[string][]*gatewayv1.ReferenceGrant
}

func newIndex(objects *Objects) *index {
	found := &index{
		services:   byKey(objects.Services),
		secrets:    byKey(objects.Secrets),
		users:      byKey(objects.Users),
		readable:   objects.SecretNamespaces,
		configMaps: byKey(objects.ConfigMaps),
		namespaces: make(map[string]labels.Set, len(objects.Namespaces)),
		grants:     map[string][]*gatewayv1.ReferenceGrant{},
	}
	for _, namespace := range objects.Namespaces {
		found.namespaces[namespace.Name] = namespace.Labels
	}
	for _, grant := range objects.ReferenceGrants {
		found.grants[grant.Namespace] = append(found.grants[grant.Namespace], grant)
	}
	return found
}

func byKey[T metav1.Object](objects []T) map[types.NamespacedName]T {
	found := make(map[types.NamespacedName]T, len(objects))
	for _, object := range objects {
		found[keyOf(object)] = object
	}
	return found
}

func oldestFirst[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int { return desired.CompareAge(a, b) })
}

func (i *index) missingSecret(at types.NamespacedName, of corev1.SecretType) *refusal {
	if i.readable != nil && !i.readable[at.Namespace] {
		return refuse(ReasonNotPermitted, "", "the gateway may not read Secrets of namespace %s; to permit it: %s",
			at.Namespace, GrantCommand(RoleSecrets, at.Namespace))
	}
	return refuse(ReasonNotFound, "", "there is no Secret %s/%s of type %s", at.Namespace, at.Name, of)
}

func keyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// referrer is an object that references others: an Ingress or an object of Gateway API.
type referrer struct{ kind, namespace string }

func (r referrer) group() string {
	if r.kind == kindIngress {
		return networkingv1.GroupName
	}
	return gatewayv1.GroupName
}

// permitted reports whether a reference stays in its namespace or has a ReferenceGrant.
func (c *compilation) permitted(from referrer, kind string, to types.NamespacedName) bool {
	if from.namespace == to.Namespace {
		return true
	}
	return slices.ContainsFunc(c.index.grants[to.Namespace], func(grant *gatewayv1.ReferenceGrant) bool {
		return slices.ContainsFunc(grant.Spec.From, func(allowed gatewayv1.ReferenceGrantFrom) bool {
			return string(allowed.Group) == from.group() && string(allowed.Kind) == from.kind &&
				string(allowed.Namespace) == from.namespace
		}) && slices.ContainsFunc(grant.Spec.To, func(allowed gatewayv1.ReferenceGrantTo) bool {
			return allowed.Group == "" && string(allowed.Kind) == kind &&
				(ptr.Deref(allowed.Name, "") == "" || string(*allowed.Name) == to.Name)
		})
	})
}

func (c *compilation) certificateOf(of types.NamespacedName) (*certificate, *refusal) {
	if c.settings.AssumeCertificates {
		return &certificate{resource: &resource.Resource{
			Name: certificateName(of.Namespace, of.Name),
			Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{}},
		}}, nil
	}
	secret := c.index.secrets[of]
	if secret == nil {
		return nil, c.index.missingSecret(of, corev1.SecretTypeTLS)
	}
	found := c.certificates.get(secret, c.settings.Now)
	if found.problem != "" {
		return nil, refuse(ReasonInvalidCertificate, "", "Secret %s/%s: %s", of.Namespace, of.Name, found.problem)
	}
	return found, nil
}

// servicePort finds a port by name, or by number if the name is empty.
func (c *compilation) servicePort(
	of types.NamespacedName, name string, number int32, protocol corev1.Protocol,
) (*corev1.ServicePort, *refusal) {
	service := c.index.services[of]
	if service == nil {
		return nil, refuse(ReasonNotFound, gatewayv1.RouteReasonBackendNotFound,
			"there is no Service %s/%s", of.Namespace, of.Name)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonInvalidKind,
			"Service %s/%s is an ExternalName, which has no endpoints: create a Service without a selector, and an EndpointSlice with "+
				"the addresses of %s", of.Namespace, of.Name, service.Spec.ExternalName)
	}
	index := slices.IndexFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return (port.Protocol == protocol || protocol == corev1.ProtocolTCP && port.Protocol == "") &&
			(name != "" && port.Name == name || name == "" && port.Port == number)
	})
	if index < 0 {
		wanted := name
		if wanted == "" {
			wanted = fmt.Sprint(number)
		}
		return nil, refuse(ReasonNotFound, gatewayv1.RouteReasonBackendNotFound,
			"Service %s/%s has no %s port %s", of.Namespace, of.Name, protocol, wanted)
	}
	return &service.Spec.Ports[index], nil
}
