// SPDX-License-Identifier: Apache-2.0

package route

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type policy struct {
	object *gatewayv1.BackendTLSPolicy
	// tls is nil if the policy is invalid; accepted is the reason. Its targets are refused, never reached
	// in plain text.
	tls         *resource.BackendTLS
	authorities []*resource.Resource
	// accepted and resolved are nil if the condition is true.
	accepted, resolved *refusal
	notes              []string
	// gateways are the Gateways with routes to a target, excluded those that the status has no room for.
	gateways map[types.NamespacedName]bool
	excluded []types.NamespacedName
}

type target struct {
	service types.NamespacedName
	section string
}

type policies struct {
	all       []*policy
	effective map[target]*policy
	targeting map[types.NamespacedName][]*policy
	// unmatched are policies for a missing port. They close all ports of the Service without another policy.
	unmatched map[types.NamespacedName]*policy
}

// readPolicies reads all policies. If several have the same target, the oldest takes effect.
func (c *compilation) readPolicies(objects []*gatewayv1.BackendTLSPolicy) {
	c.policies = policies{effective: map[target]*policy{}, targeting: map[types.NamespacedName][]*policy{}, unmatched: map[types.NamespacedName]*policy{}}
	for _, object := range oldestFirst(objects) {
		found := &policy{object: object, gateways: map[types.NamespacedName]bool{}}
		c.policies.all = append(c.policies.all, found)
		c.readPolicy(found)
		c.readTargets(found)
	}
}

// Keys of spec.options.
const (
	// OptionMinVersion is the lowest TLS version for the backend: 1.0, 1.1, 1.2 or 1.3.
	OptionMinVersion = "millrace.io/tls-min-version"
	// OptionCipherSuites is a comma-separated list of IANA names of cipher suites.
	OptionCipherSuites = "millrace.io/tls-cipher-suites"
)

var tlsVersions = map[string]uint32{
	"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13,
}

// readOptions makes the policy invalid if a value is invalid, and ignores unknown keys.
func (p *policy) readOptions(into *resource.BackendTLS) bool {
	for _, name := range slices.Sorted(maps.Keys(p.object.Spec.Options)) {
		var err error
		switch text := string(p.object.Spec.Options[name]); name {
		case OptionMinVersion:
			known := false
			if into.MinVersion, known = tlsVersions[text]; !known {
				err = fmt.Errorf("%q is not 1.0, 1.1, 1.2 or 1.3", text)
			}
		case OptionCipherSuites:
			into.CipherSuites, err = parseCipherSuites(text)
		default:
			p.notes = append(p.notes, fmt.Sprintf("spec.options: unknown key %s is ignored; known keys are %s and %s",
				name, OptionMinVersion, OptionCipherSuites))
		}
		if err != nil {
			p.accepted = refuse(ReasonInvalid, gatewayv1.PolicyReasonInvalid, "spec.options: %s: %v", name, err)
			return false
		}
	}
	return true
}

func parseCipherSuites(text string) (numbers []uint32, err error) {
	suites := slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites())
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		at := slices.IndexFunc(suites, func(suite *tls.CipherSuite) bool { return suite.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("unknown cipher suite %q: use IANA names, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
		numbers = append(numbers, uint32(suites[at].ID))
	}
	return numbers, nil
}

func (c *compilation) readTargets(of *policy) {
	won := false
	var lost []*refusal
	for i, reference := range of.object.Spec.TargetRefs {
		if reference.Group != "" || reference.Kind != kindService {
			c.refuseTarget(of, i)
			continue
		}
		at := target{service: types.NamespacedName{Namespace: of.object.Namespace, Name: string(reference.Name)}, section: string(ptr.Deref(reference.SectionName, ""))}
		// Policies are read one after another, so only the last entry can be this policy.
		if targets := c.policies.targeting[at.service]; len(targets) == 0 || targets[len(targets)-1] != of {
			c.policies.targeting[at.service] = append(targets, of)
		}
		if at.section != "" && c.lacksPort(at) {
			refused := refuse(ReasonNotFound, gatewayv1.PolicyReasonTargetNotFound,
				"spec.targetRefs[%d].sectionName: Service %s/%s has no TCP port %s; its ports without another policy are refused",
				i, at.service.Namespace, at.service.Name, at.section)
			c.policies.addUnmatched(of, at.service, refused)
			if of.accepted == nil {
				of.accepted = refused
			}
			continue
		}
		if older := c.policies.effective[at]; older != nil && older != of {
			lost = append(lost, refuse(ReasonConflict, gatewayv1.PolicyReasonConflicted,
				"spec.targetRefs[%d]: BackendTLSPolicy %s is older and has the same target", i, older.object.Name))
			continue
		}
		c.policies.effective[at] = of
		won = true
	}
	for _, refused := range lost {
		if !won && of.accepted == nil {
			of.accepted = refused
			continue
		}
		of.notes = append(of.notes, refused.message)
	}
}

// refuseTarget reports a target that is not a Service. A policy without another target has no ancestor,
// and so no status: it gets an event.
func (c *compilation) refuseTarget(of *policy, index int) {
	reference := of.object.Spec.TargetRefs[index]
	field := fmt.Sprintf("spec.targetRefs[%d]", index)
	message := fmt.Sprintf("%s %s is not a Service of the core group: the policy has no effect on it", reference.Kind, reference.Name)
	of.notes = append(of.notes, field+": "+message)
	c.problem(Object{Kind: kindBackendTLSPolicy, Namespace: of.object.Namespace, Name: of.object.Name}, field, ReasonUnsupported, message)
}

func (c *compilation) lacksPort(of target) bool {
	service := c.index.services[of.service]
	return service != nil && !slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return port.Name == of.section && (port.Protocol == corev1.ProtocolTCP || port.Protocol == "")
	})
}

func (p *policies) addUnmatched(found *policy, service types.NamespacedName, refused *refusal) {
	if p.unmatched[service] == nil {
		p.unmatched[service] = &policy{object: found.object, accepted: refused, gateways: found.gateways}
	}
}

// forPort prefers the policy of the named port to the policy of all ports.
func (p *policies) forPort(service types.NamespacedName, port *corev1.ServicePort) *policy {
	if len(p.targeting) == 0 {
		return nil
	}
	if port.Name != "" {
		if found := p.effective[target{service, port.Name}]; found != nil {
			return found
		}
	}
	if found := p.effective[target{service: service}]; found != nil {
		return found
	}
	return p.unmatched[service]
}

func (c *compilation) readPolicy(of *policy) {
	validation := &of.object.Spec.Validation
	host, err := ownership.ParseHost(string(validation.Hostname))
	if err != nil || host == "" || host.IsWildcard() {
		of.accepted = refuse(ReasonInvalid, gatewayv1.PolicyReasonInvalid,
			"spec.validation.hostname: %q is not a host name", validation.Hostname)
		return
	}
	found := &resource.BackendTLS{Hostname: string(host)}
	if !of.readOptions(found) || !c.readAuthorities(of, found) {
		return
	}
	for i, name := range validation.SubjectAltNames {
		switch {
		case name.Type == gatewayv1.HostnameSubjectAltNameType && name.Hostname != "":
			found.SubjectAltNames = append(found.SubjectAltNames, &resource.SubjectAltName{
				Kind: &resource.SubjectAltName_Hostname{Hostname: string(name.Hostname)}})
		case name.Type == gatewayv1.URISubjectAltNameType && name.URI != "":
			found.SubjectAltNames = append(found.SubjectAltNames, &resource.SubjectAltName{
				Kind: &resource.SubjectAltName_Uri{Uri: string(name.URI)}})
		default:
			of.accepted = refuse(ReasonInvalid, gatewayv1.PolicyReasonInvalid,
				"spec.validation.subjectAltNames[%d]: type %s has no value", i, name.Type)
			return
		}
	}
	of.tls = found
}

// readAuthorities makes the policy invalid if no reference resolves.
func (c *compilation) readAuthorities(of *policy, into *resource.BackendTLS) bool {
	validation := &of.object.Spec.Validation
	if len(validation.CACertificateRefs) == 0 {
		if ptr.Deref(validation.WellKnownCACertificates, "") == gatewayv1.WellKnownCACertificatesSystem {
			return true
		}
		of.accepted = refuse(ReasonInvalid, gatewayv1.PolicyReasonInvalid,
			"spec.validation: caCertificateRefs or wellKnownCACertificates System is required")
		return false
	}
	for i, reference := range validation.CACertificateRefs {
		found, refused := c.authorityOf(referrer{kind: kindBackendTLSPolicy, namespace: of.object.Namespace},
			gatewayv1.ObjectReference{Group: reference.Group, Kind: reference.Kind, Name: reference.Name})
		if refused != nil {
			if refused.condition == string(gatewayv1.ListenerReasonInvalidCACertificateKind) {
				refused.condition = string(gatewayv1.BackendTLSPolicyReasonInvalidKind)
			}
			if of.resolved == nil {
				of.resolved = refused.at("spec.validation.caCertificateRefs[%d]", i)
			}
		}
		if found == nil {
			continue
		}
		of.authorities = append(of.authorities, found)
		into.CertificateAuthorities = append(into.CertificateAuthorities, found.Name)
	}
	if len(of.authorities) == 0 {
		of.accepted = refuse(ReasonInvalid, gatewayv1.BackendTLSPolicyReasonNoValidCACertificate,
			"spec.validation.caCertificateRefs: no reference can be resolved")
		return false
	}
	return true
}

// excludes reports whether the policy cannot be implemented for a Gateway, because its status has no room
// for the Gateway (Gateway API: PolicyStatus.ancestors).
func (p *policy) excludes(gateway types.NamespacedName) bool {
	return slices.Contains(p.excluded, gateway)
}
