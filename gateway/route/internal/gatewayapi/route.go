// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type route struct {
	kind    string
	object  metav1.Object
	parents []gatewayv1.ParentReference
	hosts   []ownership.Host
	// age is the position of the route among all routes, the oldest first.
	age int
	// read reads the rules of the route. readRules calls it once if the route has a parent of this
	// controller.
	read   func(*compiler, *route)
	isRead bool

	ruleIndex int
	// isAuthUnresolved is true if the ExternalAuth backend of the current rule does not resolve.
	isAuthUnresolved bool
	protects         bool
	// steps is the size of the route's regular expressions in instructions.
	steps    int
	rules    []*orderedRule
	backends []*builder.Backend
	// bytes is the encoded size of the rules in bytes.
	bytes  int64
	layer4 []model.WeightedService
	// tls is the variant of a TLSRoute for listeners that terminate TLS. It has another age.
	tls *route

	// accepted, resolved and partial are the reasons of negative conditions, or nil.
	accepted, resolved *builder.Refusal
	partial            *builder.Refusal
	hostError          *builder.Refusal
	// notes describe fields whose value was limited or replaced.
	notes []string
}

func (r *route) note(format string, arguments ...any) {
	r.notes = append(r.notes, fmt.Sprintf("spec.rules[%d].", r.ruleIndex)+fmt.Sprintf(format, arguments...))
}

func (r *route) name() model.Object {
	return model.Object{Kind: r.kind, Namespace: r.object.GetNamespace(), Name: r.object.GetName()}
}

func (r *route) referrer() builder.Referrer {
	return builder.Referrer{Kind: r.kind, Namespace: r.object.GetNamespace()}
}

func (r *route) refuseResolved(refused *builder.Refusal) {
	if r.resolved == nil {
		r.resolved = refused
	}
}

type orderedRule struct {
	rule *resource.Rule
	// rank is compared element by element; the larger one takes precedence.
	rank     [6]int
	protects bool
}

func (c *compiler) orderedRoutes(objects *model.Objects) []*route {
	all := c.allRoutes(objects)
	slices.SortFunc(all, func(a, b *route) int {
		return cmp.Or(desired.CompareAge(a.object, b.object), cmp.Compare(a.kind, b.kind))
	})
	for i, found := range all {
		found.age = i
	}
	return all
}

// attachRoutes attaches all routes, the oldest first, and sets their statuses.
func (c *compiler) attachRoutes(all []*route) {
	statuses := map[string][]model.Status[gatewayv1.RouteStatus]{}
	for _, found := range all {
		clear(c.charged)
		c.charges = c.charges[:0]
		status := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{}}
		for _, parent := range found.parents {
			if conditions := c.attach(found, parent); conditions != nil {
				status.Parents = append(status.Parents, gatewayv1.RouteParentStatus{
					ParentRef: parent, ControllerName: c.Settings.GatewayController, Conditions: conditions,
				})
			}
		}
		if len(status.Parents) > 0 {
			c.ReportUnprotected(found.name(), found.object.GetAnnotations(), false)
		}
		statuses[found.kind] = append(statuses[found.kind], statusOf(found.object, status))
	}
	for _, list := range statuses {
		sortStatuses(list)
	}
	to := &c.Result.Statuses
	to.HTTPRoutes, to.GRPCRoutes, to.TLSRoutes = statuses[model.KindHTTPRoute], statuses[model.KindGRPCRoute], statuses[model.KindTLSRoute]
	to.TCPRoutes, to.UDPRoutes = statuses[model.KindTCPRoute], statuses[model.KindUDPRoute]
}

func (c *compiler) allRoutes(objects *model.Objects) []*route {
	all := make([]*route, 0, len(objects.HTTPRoutes)+len(objects.GRPCRoutes)+len(objects.TLSRoutes)+
		len(objects.TCPRoutes)+len(objects.UDPRoutes))
	for _, object := range objects.HTTPRoutes {
		made := newRoute(model.KindHTTPRoute, object, object.Spec.CommonRouteSpec, object.Spec.Hostnames,
			func(c *compiler, of *route) { c.readHTTPRoute(of, object) })
		for i := range object.Spec.Rules {
			made.protects = made.protects || protectsRule(httpRuleFilters(&object.Spec.Rules[i]))
		}
		all = append(all, made)
	}
	for _, object := range objects.GRPCRoutes {
		made := newRoute(model.KindGRPCRoute, object, object.Spec.CommonRouteSpec, object.Spec.Hostnames,
			func(c *compiler, of *route) { c.readGRPCRoute(of, object) })
		for i := range object.Spec.Rules {
			made.protects = made.protects || protectsRule(grpcRuleFilters(&object.Spec.Rules[i]))
		}
		all = append(all, made)
	}
	for _, object := range objects.TLSRoutes {
		all = append(all, newRoute(model.KindTLSRoute, object, object.Spec.CommonRouteSpec, object.Spec.Hostnames,
			func(c *compiler, of *route) { c.readTLSRoute(of, object) }))
	}
	for _, object := range objects.TCPRoutes {
		all = append(all, newRoute(model.KindTCPRoute, object, object.Spec.CommonRouteSpec, nil,
			func(c *compiler, of *route) { c.readTCPRoute(of, object) }))
	}
	for _, object := range objects.UDPRoutes {
		all = append(all, newRoute(model.KindUDPRoute, object, object.Spec.CommonRouteSpec, nil,
			func(c *compiler, of *route) { c.readUDPRoute(of, object) }))
	}
	return all
}

func newRoute(
	kind string, object metav1.Object, spec gatewayv1.CommonRouteSpec, hosts []gatewayv1.Hostname,
	read func(*compiler, *route),
) *route {
	found := &route{kind: kind, object: object, parents: spec.ParentRefs, read: read}
	var refused *builder.Refusal
	for i, text := range hosts {
		host, err := ownership.ParseHost(string(text))
		if err != nil {
			refused = builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "spec.hostnames[%d]: %v", i, err)
			found.notes = append(found.notes, refused.Message)
			continue
		}
		if !slices.Contains(found.hosts, host) {
			found.hosts = append(found.hosts, host)
		}
	}
	found.hostError = refused
	switch {
	case refused != nil && len(found.hosts) == 0:
		// Without a host name the route would apply to all hosts.
		found.accepted = refused
	case len(hosts) == 0:
		found.hosts = []ownership.Host{""}
	}
	return found
}

func (c *compiler) readRules(of *route) {
	if !of.isRead {
		of.isRead = true
		of.read(c, of)
		c.RecordVersion(of.kind, of.object)
		if refused := cmp.Or(of.accepted, of.partial, of.hostError); refused != nil {
			c.addRouteFailure(of, refused)
		}
		if failures := c.Retained[of.name()]; len(failures) > 0 {
			of.partial = builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue, "Fall Back: %s", failures[0].Message)
		}
		of.bytes = rulesBytes(of.rules)
		c.read[of.object.GetNamespace()] += of.bytes
	}
}

func (c *compiler) addRouteFailure(of *route, refused *builder.Refusal) {
	c.AddFailure(of.name(), "spec", refused.Reason, strings.TrimPrefix(refused.Message, "Dropped Rule: "))
}

// secretOf resolves a reference to a certificate. invalid is the condition's reason if it cannot be used.
func (c *compiler) secretOf(
	from builder.Referrer, reference gatewayv1.SecretObjectReference, invalid string,
) (*certificate.Certificate, *builder.Refusal) {
	kind := gatewayv1.Kind(model.KindSecret)
	if reference.Kind != nil {
		kind = *reference.Kind
	}
	if ptr.Deref(reference.Group, "") != "" || kind != model.KindSecret {
		return nil, builder.Refuse(model.ReasonUnsupported, invalid, "%s %s is not a Secret of the core group", kind, reference.Name)
	}
	at := types.NamespacedName{Namespace: from.Namespace, Name: string(reference.Name)}
	if reference.Namespace != nil {
		at.Namespace = string(*reference.Namespace)
	}
	if !c.Permitted(from, model.KindSecret, at) {
		return nil, builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to Secret %s", at.Namespace, from.Kind, from.Namespace, at.Name)
	}
	found, refused := c.CertificateOf(at)
	if refused != nil {
		refused.Condition = invalid
	}
	return found, refused
}

func (c *compiler) serviceOf(
	from builder.Referrer, reference gatewayv1.BackendObjectReference, protocol corev1.Protocol,
) (types.NamespacedName, *corev1.ServicePort, *builder.Refusal) {
	kind := gatewayv1.Kind(model.KindService)
	if reference.Kind != nil {
		kind = *reference.Kind
	}
	at := types.NamespacedName{Namespace: from.Namespace, Name: string(reference.Name)}
	if reference.Namespace != nil {
		at.Namespace = string(*reference.Namespace)
	}
	if ptr.Deref(reference.Group, "") != "" || kind != model.KindService {
		return at, nil, builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonInvalidKind,
			"%s %s is not a Service of the core group", kind, reference.Name)
	}
	if !c.Permitted(from, model.KindService, at) {
		return at, nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to Service %s", at.Namespace, from.Kind, from.Namespace, at.Name)
	}
	if reference.Port == nil {
		return at, nil, builder.Refuse(model.ReasonInvalid, gatewayv1.RouteReasonBackendNotFound,
			"Service %s/%s: a port is required", at.Namespace, at.Name)
	}
	port, refused := c.ServicePort(at, "", *reference.Port, protocol)
	return at, port, refused
}
