// SPDX-License-Identifier: Apache-2.0

package builder

import (
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
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

type index struct {
	services map[types.NamespacedName]*corev1.Service
	secrets  map[types.NamespacedName]*corev1.Secret
	Users    map[types.NamespacedName]*corev1.Secret
	// readable contains the namespaces whose Secrets the gateway may read; nil means all namespaces.
	readable   map[string]bool
	ConfigMaps map[types.NamespacedName]*corev1.ConfigMap
	Namespaces map[string]labels.Set
	// grants contains the ReferenceGrants by their namespace, which is the namespace of the targets.
	grants map[string][]*gatewayv1.ReferenceGrant
}

func newIndex(objects *model.Objects) *index {
	found := &index{
		services:   byKey(objects.Services),
		secrets:    byKey(objects.Secrets),
		Users:      byKey(objects.Users),
		readable:   objects.SecretNamespaces,
		ConfigMaps: byKey(objects.ConfigMaps),
		Namespaces: make(map[string]labels.Set, len(objects.Namespaces)),
		grants:     map[string][]*gatewayv1.ReferenceGrant{},
	}
	for _, namespace := range objects.Namespaces {
		found.Namespaces[namespace.Name] = namespace.Labels
	}
	for _, grant := range objects.ReferenceGrants {
		found.grants[grant.Namespace] = append(found.grants[grant.Namespace], grant)
	}
	return found
}

func byKey[T metav1.Object](objects []T) map[types.NamespacedName]T {
	found := make(map[types.NamespacedName]T, len(objects))
	for _, object := range objects {
		found[model.KeyOf(object)] = object
	}
	return found
}

// OldestFirst returns the objects sorted by age, the oldest first.
func OldestFirst[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int { return desired.CompareAge(a, b) })
}

func (i *index) MissingSecret(at types.NamespacedName, of corev1.SecretType) *Refusal {
	if i.readable != nil && !i.readable[at.Namespace] {
		return Refuse(model.ReasonForbidden, "", "the gateway may not read Secrets of namespace %s; to permit it: %s",
			at.Namespace, model.GrantCommand(model.RoleSecrets, at.Namespace))
	}
	return Refuse(model.ReasonNotFound, "", "there is no Secret %s/%s of type %s", at.Namespace, at.Name, of)
}

// Referrer is the kind and namespace of an object that refers to another one: an Ingress or an object of
// Gateway API.
type Referrer struct{ Kind, Namespace string }

func (r Referrer) group() string {
	if r.Kind == model.KindIngress {
		return networkingv1.GroupName
	}
	return gatewayv1.GroupName
}

// Permitted reports whether a reference is within a namespace or permitted by a ReferenceGrant.
func (c *Builder) Permitted(from Referrer, kind string, to types.NamespacedName) bool {
	if from.Namespace == to.Namespace {
		return true
	}
	return slices.ContainsFunc(c.Index.grants[to.Namespace], func(grant *gatewayv1.ReferenceGrant) bool {
		return slices.ContainsFunc(grant.Spec.From, func(allowed gatewayv1.ReferenceGrantFrom) bool {
			return string(allowed.Group) == from.group() && string(allowed.Kind) == from.Kind &&
				string(allowed.Namespace) == from.Namespace
		}) && slices.ContainsFunc(grant.Spec.To, func(allowed gatewayv1.ReferenceGrantTo) bool {
			return allowed.Group == "" && string(allowed.Kind) == kind &&
				(ptr.Deref(allowed.Name, "") == "" || string(*allowed.Name) == to.Name)
		})
	})
}

// CertificateOf returns the certificate of a Secret, or the reason why it cannot be used.
func (c *Builder) CertificateOf(of types.NamespacedName) (*certificate.Certificate, *Refusal) {
	if c.Settings.AssumeCertificates {
		return &certificate.Certificate{Resource: &resource.Resource{
			Name: model.CertificateName(of.Namespace, of.Name),
			Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{}},
		}}, nil
	}
	secret := c.Index.secrets[of]
	if secret == nil {
		return nil, c.Index.MissingSecret(of, corev1.SecretTypeTLS)
	}
	found := c.Certificates.Get(secret, c.Settings.Now)
	if found.Problem != "" {
		return nil, Refuse(model.ReasonInvalidCertificate, "", "Secret %s/%s: %s", of.Namespace, of.Name, found.Problem)
	}
	return found, nil
}

// ServicePort returns a port of a Service by name, or by number if the name is empty.
func (c *Builder) ServicePort(
	of types.NamespacedName, name string, number int32, protocol corev1.Protocol,
) (*corev1.ServicePort, *Refusal) {
	service := c.Index.services[of]
	if service == nil {
		return nil, Refuse(model.ReasonNotFound, gatewayv1.RouteReasonBackendNotFound,
			"there is no Service %s/%s", of.Namespace, of.Name)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonInvalidKind,
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
		return nil, Refuse(model.ReasonNotFound, gatewayv1.RouteReasonBackendNotFound,
			"Service %s/%s has no %s port %s", of.Namespace, of.Name, protocol, wanted)
	}
	return &service.Spec.Ports[index], nil
}
