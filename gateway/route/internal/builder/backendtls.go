// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"cmp"
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
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// Policy is a BackendTLSPolicy that was read.
type Policy struct {
	Object *gatewayv1.BackendTLSPolicy
	// tls is nil if the policy is invalid for the reason Accepted. Requests to its targets are refused then,
	// never sent in plain text.
	tls         *resource.BackendTLS
	authorities []*resource.Resource
	// Accepted and Resolved are the reasons of conditions that are False, or nil.
	Accepted, Resolved *Refusal
	Notes              []string
	// Gateways are the Gateways that have routes to a target. Excluded are the Gateways beyond the limit of
	// the status.
	Gateways map[types.NamespacedName]bool
	Excluded []types.NamespacedName
}

type target struct {
	service types.NamespacedName
	section string
}

type policies struct {
	All       []*Policy
	effective map[target]*Policy
	Targeting map[types.NamespacedName][]*Policy
	// unmatched contains policies for ports that do not exist, by Service. Such a policy closes all ports of
	// the Service that have no other policy.
	unmatched map[types.NamespacedName]*Policy
}

// readPolicies reads all policies. If several policies have the same target, the oldest one takes effect.
func (c *Builder) readPolicies(objects []*gatewayv1.BackendTLSPolicy) {
	c.Policies = policies{effective: map[target]*Policy{}, Targeting: map[types.NamespacedName][]*Policy{}, unmatched: map[types.NamespacedName]*Policy{}}
	for _, object := range OldestFirst(objects) {
		found := &Policy{Object: object, Gateways: map[types.NamespacedName]bool{}}
		c.Policies.All = append(c.Policies.All, found)
		c.readPolicy(found)
		c.readTargets(found)
		c.recordPolicy(found)
	}
}

const fieldAuthorities = "spec.validation.caCertificateRefs"

// recordPolicy records the version of a policy, and its failure unless it is valid. A policy that only
// conflicts with an older one is valid.
func (c *Builder) recordPolicy(of *Policy) {
	c.RecordVersion(model.KindBackendTLSPolicy, of.Object)
	unit := model.Object{Kind: model.KindBackendTLSPolicy, Namespace: of.Object.Namespace, Name: of.Object.Name}
	switch {
	case of.Accepted == nil || of.Accepted.Reason == model.ReasonConflict:
	case of.Accepted.Condition == string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate) && of.Resolved != nil:
		c.AddFailure(unit, fieldAuthorities, of.Resolved.Reason, of.Resolved.Message)
	default:
		c.AddFailure(unit, "spec", of.Accepted.Reason, of.Accepted.Message)
	}
	for _, failure := range c.Retained[unit] {
		reason := gatewayv1.PolicyReasonInvalid
		if failure.Field == fieldAuthorities {
			reason = gatewayv1.BackendTLSPolicyReasonNoValidCACertificate
			of.Resolved = cmp.Or(of.Resolved, Refuse(failure.Reason, gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef, "%s", failure.Message))
		}
		of.Accepted = Refuse(failure.Reason, reason, "%s; the previous version is still used", failure.Message)
	}
}

// Keys of BackendTLSPolicy.spec.options.
const (
	// OptionMinVersion is the lowest TLS version for the backend: 1.0, 1.1, 1.2 or 1.3.
	OptionMinVersion = "millrace.io/tls-min-version"
	// OptionCipherSuites is a comma-separated list of IANA names of cipher suites.
	OptionCipherSuites = "millrace.io/tls-cipher-suites"
)

var tlsVersions = map[string]uint32{
	"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13,
}

// readOptions reads spec.options. An invalid value makes the policy invalid; unknown keys are ignored.
func (p *Policy) readOptions(into *resource.BackendTLS) bool {
	for _, name := range slices.Sorted(maps.Keys(p.Object.Spec.Options)) {
		var err error
		switch text := string(p.Object.Spec.Options[name]); name {
		case OptionMinVersion:
			known := false
			if into.MinVersion, known = tlsVersions[text]; !known {
				err = fmt.Errorf("%q is not 1.0, 1.1, 1.2 or 1.3", text)
			}
		case OptionCipherSuites:
			into.CipherSuites, err = parseCipherSuites(text)
		default:
			p.Notes = append(p.Notes, fmt.Sprintf("spec.options: unknown key %s is ignored; known keys are %s and %s",
				name, OptionMinVersion, OptionCipherSuites))
		}
		if err != nil {
			p.Accepted = Refuse(model.ReasonInvalid, gatewayv1.PolicyReasonInvalid, "spec.options: %s: %v", name, err)
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

func (c *Builder) readTargets(of *Policy) {
	won := false
	var lost []*Refusal
	for i, reference := range of.Object.Spec.TargetRefs {
		if reference.Group != "" || reference.Kind != model.KindService {
			c.refuseTarget(of, i)
			continue
		}
		at := target{service: types.NamespacedName{Namespace: of.Object.Namespace, Name: string(reference.Name)}, section: string(ptr.Deref(reference.SectionName, ""))}
		// Policies are read one after another, so if the list contains this policy, it is the last entry.
		if targets := c.Policies.Targeting[at.service]; len(targets) == 0 || targets[len(targets)-1] != of {
			c.Policies.Targeting[at.service] = append(targets, of)
		}
		if at.section != "" && c.lacksPort(at) {
			refused := Refuse(model.ReasonNotFound, gatewayv1.PolicyReasonTargetNotFound,
				"spec.targetRefs[%d].sectionName: Service %s/%s has no TCP port %s; its ports without another policy are refused",
				i, at.service.Namespace, at.service.Name, at.section)
			c.Policies.addUnmatched(of, at.service, refused)
			if of.Accepted == nil {
				of.Accepted = refused
			}
			continue
		}
		if older := c.Policies.effective[at]; older != nil && older != of {
			lost = append(lost, Refuse(model.ReasonConflict, gatewayv1.PolicyReasonConflicted,
				"spec.targetRefs[%d]: BackendTLSPolicy %s is older and has the same target", i, older.Object.Name))
			continue
		}
		c.Policies.effective[at] = of
		won = true
	}
	for _, refused := range lost {
		if !won && of.Accepted == nil {
			of.Accepted = refused
			continue
		}
		of.Notes = append(of.Notes, refused.Message)
	}
}

// refuseTarget reports a target that is not a Service. If the policy has no other target, it has no ancestor
// and therefore no status, so it is reported by an event.
func (c *Builder) refuseTarget(of *Policy, index int) {
	reference := of.Object.Spec.TargetRefs[index]
	field := fmt.Sprintf("spec.targetRefs[%d]", index)
	message := fmt.Sprintf("%s %s is not a Service of the core group: the policy has no effect on it", reference.Kind, reference.Name)
	of.Notes = append(of.Notes, field+": "+message)
	c.AddProblem(model.Object{Kind: model.KindBackendTLSPolicy, Namespace: of.Object.Namespace, Name: of.Object.Name}, field, model.ReasonUnsupported, message)
}

func (c *Builder) lacksPort(of target) bool {
	service := c.Index.services[of.service]
	return service != nil && !slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return port.Name == of.section && (port.Protocol == corev1.ProtocolTCP || port.Protocol == "")
	})
}

func (p *policies) addUnmatched(found *Policy, service types.NamespacedName, refused *Refusal) {
	if p.unmatched[service] == nil {
		p.unmatched[service] = &Policy{Object: found.Object, Accepted: refused, Gateways: found.Gateways}
	}
}

// forPort returns the policy for a port. A policy for the named port takes precedence over one for all ports.
func (p *policies) forPort(service types.NamespacedName, port *corev1.ServicePort) *Policy {
	if len(p.Targeting) == 0 {
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

func (c *Builder) readPolicy(of *Policy) {
	validation := &of.Object.Spec.Validation
	host, err := ownership.ParseHost(string(validation.Hostname))
	if err != nil || host == "" || host.IsWildcard() {
		of.Accepted = Refuse(model.ReasonInvalid, gatewayv1.PolicyReasonInvalid,
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
			of.Accepted = Refuse(model.ReasonInvalid, gatewayv1.PolicyReasonInvalid,
				"spec.validation.subjectAltNames[%d]: type %s has no value", i, name.Type)
			return
		}
	}
	of.tls = found
}

// readAuthorities reads the CA certificates. If no reference resolves, the policy is invalid.
func (c *Builder) readAuthorities(of *Policy, into *resource.BackendTLS) bool {
	validation := &of.Object.Spec.Validation
	if len(validation.CACertificateRefs) == 0 {
		if ptr.Deref(validation.WellKnownCACertificates, "") == gatewayv1.WellKnownCACertificatesSystem {
			return true
		}
		of.Accepted = Refuse(model.ReasonInvalid, gatewayv1.PolicyReasonInvalid,
			"spec.validation: caCertificateRefs or wellKnownCACertificates System is required")
		return false
	}
	for i, reference := range validation.CACertificateRefs {
		found, refused := c.AuthorityOf(Referrer{Kind: model.KindBackendTLSPolicy, Namespace: of.Object.Namespace},
			gatewayv1.ObjectReference{Group: reference.Group, Kind: reference.Kind, Name: reference.Name})
		if refused != nil {
			if refused.Condition == string(gatewayv1.ListenerReasonInvalidCACertificateKind) {
				refused.Condition = string(gatewayv1.BackendTLSPolicyReasonInvalidKind)
			}
			if of.Resolved == nil {
				of.Resolved = refused.At(fieldAuthorities+"[%d]", i)
			}
		}
		if found == nil {
			continue
		}
		of.authorities = append(of.authorities, found)
		into.CertificateAuthorities = append(into.CertificateAuthorities, found.Name)
	}
	if len(of.authorities) == 0 {
		of.Accepted = Refuse(model.ReasonInvalid, gatewayv1.BackendTLSPolicyReasonNoValidCACertificate,
			fieldAuthorities+": no reference can be resolved")
		return false
	}
	return true
}

// Excludes reports whether the policy is not implemented for a Gateway because its status has no room for the
// Gateway (Gateway API: PolicyStatus.ancestors).
func (p *Policy) Excludes(gateway types.NamespacedName) bool {
	return slices.Contains(p.Excluded, gateway)
}
