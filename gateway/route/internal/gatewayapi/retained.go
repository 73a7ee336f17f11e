// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"cmp"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// ListenerUnit returns the key of a listener's versions. Each listener is retained separately, so that an
// invalid listener does not block changes of others.
func ListenerUnit(owner model.Object, listener gatewayv1.SectionName) model.Object {
	owner.Name += "/" + string(listener)
	return owner
}

func (l *listener) ownerObject() model.Object {
	return model.Object{Kind: l.ownerKind, Namespace: l.owner.GetNamespace(), Name: l.owner.GetName()}
}

// Fields whose failures are reported by the condition ResolvedRefs.
const (
	fieldCertificates      = "tls.certificateRefs"
	fieldClientCertificate = "spec.tls.backend.clientCertificateRef"
)

// recordVersions records the versions of a Gateway's common fields and of its listeners, and their failures.
func (c *compiler) recordVersions(of *gateway) {
	unit := model.Object{Kind: model.KindGateway, Namespace: of.object.Namespace, Name: of.object.Name}
	c.Good[unit] = of.object
	if of.refused != nil {
		c.AddFailure(unit, "spec", of.refused.Reason, of.refused.Message)
	} else if of.resolved != nil && of.proxy.ClientCertificate == nil {
		c.AddFailure(unit, fieldClientCertificate, of.resolved.Reason, of.resolved.Message)
	}
	for _, found := range of.listeners {
		unit, field, refused := ListenerUnit(found.ownerObject(), found.spec.Name), "", cmp.Or(found.conflict, found.accepted)
		if refused == nil && found.terminatesTLS() && len(found.certificates) == 0 {
			field, refused = fieldCertificates, found.resolved
		}
		c.Good[unit] = found.owner
		if refused != nil {
			c.Failed[unit] = append(c.Failed[unit], model.Problem{
				Object: found.ownerObject(), Field: field, Reason: refused.Reason, Message: refused.Message,
			})
		}
	}
}

// CanRestoreTLS reports whether the previous version of spec.tls validates client certificates at all ports
// at which the current version does.
func CanRestoreTLS(last, now *gatewayv1.Gateway) bool {
	ports := []int32{0}
	for _, each := range []*gatewayv1.Gateway{last, now} {
		if each.Spec.TLS != nil && each.Spec.TLS.Frontend != nil {
			for _, port := range each.Spec.TLS.Frontend.PerPort {
				ports = append(ports, port.Port)
			}
		}
	}
	for _, port := range ports {
		if frontendValidation(now, port) != nil && frontendValidation(last, port) == nil {
			return false
		}
	}
	return true
}

// readRetained reads the failures of a Gateway whose previous common fields are compiled.
func (c *compiler) readRetained(of *gateway) {
	for _, failure := range c.Retained[model.Object{Kind: model.KindGateway, Namespace: of.object.Namespace, Name: of.object.Name}] {
		if failure.Field == fieldClientCertificate {
			of.resolved = retained(failure, gatewayv1.GatewayReasonInvalidClientCertificateRef)
		} else {
			of.retained = retained(failure, gatewayv1.GatewayReasonInvalid)
		}
	}
}

func (c *compiler) readRetainedListener(of *listener) {
	for _, failure := range c.Retained[ListenerUnit(of.ownerObject(), of.spec.Name)] {
		if failure.Field == fieldCertificates {
			of.refuseResolved(retained(failure, gatewayv1.ListenerReasonInvalidCertificateRef))
		} else {
			of.retained = retained(failure, gatewayv1.ListenerReasonUnsupportedValue)
		}
	}
}

func retained[T ~string](failure model.Problem, reason T) *builder.Refusal {
	return builder.Refuse(failure.Reason, reason, "%s; the previous version is still served", strings.TrimPrefix(failure.Message, failure.Field+": "))
}
