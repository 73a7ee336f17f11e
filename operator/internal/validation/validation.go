// SPDX-License-Identifier: Apache-2.0

// Package validation reports which parts of a Service cannot be served, from API objects alone. It is pure.
package validation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// MaxZones is the maximum number of distinguished zones.
const MaxZones = 7

// A Subject is a Service and its addresses.
type Subject struct {
	Service   *corev1.Service
	Addresses []Address
	// Conflicts are ports of the Service that other Services have on its addresses.
	Conflicts []ipam.Conflict
	// OverCapacity names the nodes whose maps cannot hold the Service, or is empty.
	OverCapacity string
	// Foreign lists the addresses in the Service's status that another load balancer assigned, or is empty.
	Foreign string
	// Contested is true while another program keeps overwriting the Service's status.
	Contested bool
}

// An Address is a VIP of a Service.
type Address struct {
	netip.Addr
	Pool     string
	Services []labels.Set
	// Host names a node or router that has the address, or is empty.
	Host string
	// Duplicate is a host that answers for the address.
	Duplicate Duplicate
}

// Inputs are the other inputs.
type Inputs struct {
	Advertisements []desired.Advertisement
	// Announced lists, for each advertisement, the families of the established BGP sessions of its nodes or,
	// with L2, both if any node is ready.
	Announced []Families
	// Networks lists for each L2 advertisement the networks on the links of its nodes.
	Networks [][]netip.Prefix
	Zones    int
}

// A Problem is a requested feature that the Service does not get.
type Problem struct {
	Reason  string
	Message string
}

// A PortError is a port that is not served on an address.
type PortError struct {
	Address netip.Addr
	Port    ipam.Port
	Reason  string
}

// A Result lists the parts of a Service that are not served.
type Result struct {
	// Problems affect some or all clients; the most severe comes first.
	Problems []Problem
	// Notes are ignored settings that affect no client.
	Notes []string
	// Ports are the unserved ports, each once for an address.
	Ports []PortError
	// Announcements has one entry for each address.
	Announcements []Announcement
}

// An Announcement reports whether a node can announce an address.
type Announcement struct {
	Address netip.Addr
	// Problem is why no node can, or the zero value.
	Problem Problem
}

// Validate returns the parts of a Service that are not served.
func Validate(subject Subject, inputs Inputs) Result {
	j := &validator{subject: subject, inputs: inputs}
	if subject.Contested {
		j.problem(millracev1beta1.ReasonStatusConflict, "another controller repeatedly overwrites the Service's status, so "+
			"Millrace writes it only every 30 s: stop that controller for this Service; metadata.managedFields names it")
	}
	j.checkHosts()
	j.checkAdvertisements()
	j.checkSources()
	j.checkConflicts()
	j.checkPorts()
	if subject.OverCapacity != "" {
		j.problem(millracev1beta1.ReasonMapFull, "the maps are too full for the whole Service on %s: "+
			"raise the agents' flag that the LBNodeReport names", subject.OverCapacity)
	}
	if subject.Foreign != "" {
		j.problem(millracev1beta1.ReasonForeignAddress, "status.loadBalancer.ingress also has %s, which is not a VIP of the Service: "+
			"stop the other load balancer for this Service, then remove the entry", subject.Foreign)
	}
	j.checkZones()
	return j.result
}

type validator struct {
	subject Subject
	inputs  Inputs
	result  Result
}

func (j *validator) problem(reason, format string, arguments ...any) {
	j.result.Problems = append(j.result.Problems, problemOf(reason, format, arguments...))
}

func problemOf(reason, format string, arguments ...any) Problem {
	return Problem{Reason: reason, Message: fmt.Sprintf(format, arguments...)}
}

func (j *validator) refusePort(address netip.Addr, port ipam.Port, reason string) {
	same := func(e PortError) bool { return e.Address == address && e.Port == port }
	if !slices.ContainsFunc(j.result.Ports, same) {
		j.result.Ports = append(j.result.Ports, PortError{Address: address, Port: port, Reason: reason})
	}
}

func (j *validator) checkHosts() {
	for _, address := range j.subject.Addresses {
		if address.Duplicate != (Duplicate{}) {
			j.problem(address.Duplicate.Reason(), "%s", address.Duplicate.Message())
		}
		if address.Host == "" {
			continue
		}
		j.result.Problems = append(j.result.Problems, occupied(address))
		for i := range j.subject.Service.Spec.Ports {
			j.refusePort(address.Addr, portOf(&j.subject.Service.Spec.Ports[i]), millracev1beta1.ReasonOccupied)
		}
	}
}

func portOf(spec *corev1.ServicePort) ipam.Port {
	return ipam.Port{Number: uint16(spec.Port), Protocol: cmp.Or(string(spec.Protocol), string(corev1.ProtocolTCP))}
}

func (j *validator) checkAdvertisements() {
	for _, address := range j.subject.Addresses {
		problem := j.unannounced(address)
		if problem != (Problem{}) {
			j.result.Problems = append(j.result.Problems, problem)
		}
		if address.Host != "" {
			problem = occupied(address)
		}
		j.result.Announcements = append(j.result.Announcements, Announcement{Address: address.Addr, Problem: problem})
	}
}

func occupied(address Address) Problem {
	return Problem{millracev1beta1.ReasonOccupied, desired.OccupiedVIP(address.Addr, address.Host)}
}

// unannounced returns why no node can announce an address, or the zero value.
func (j *validator) unannounced(address Address) Problem {
	// The message names the first advertisement, and the first one without a link.
	var first, unlinked *desired.Advertisement
	for i := range j.inputs.Advertisements {
		advertisement := &j.inputs.Advertisements[i]
		if !advertisement.Selects(address.Pool, address.Services) {
			continue
		}
		if first == nil || advertisement.Name < first.Name {
			first = advertisement
		}
		switch {
		case !j.inputs.Announced[i].Has(address.Addr):
		case advertisement.L2 && !j.isLinked(i, address.Addr):
			if unlinked == nil || advertisement.Name < unlinked.Name {
				unlinked = advertisement
			}
		default:
			return Problem{}
		}
	}
	switch {
	case first == nil:
		return problemOf(millracev1beta1.ReasonNotSelected, "no VIPAdvertisement selects %s, so no node announces it", address)
	case unlinked != nil:
		return problemOf(millracev1beta1.ReasonNoLink, "no node selected by VIPAdvertisement %s has an attached uplink in a network "+
			"that contains %s, so no node answers for it: add addresses of the nodes' network to the pool, or list the interfaces in "+
			"spec.l2.interfaces of the VIPAdvertisement", unlinked.Name, address)
	case first.L2:
		return problemOf(millracev1beta1.ReasonNotAnnounced, "no node selected by VIPAdvertisement %s is ready, "+
			"so no node answers for %s", first.Name, address)
	default:
		return problemOf(millracev1beta1.ReasonNotAnnounced, "no node selected by VIPAdvertisement %s has an established BGP session "+
			"that carries %s routes, so no node announces %s", first.Name, ipam.FamilyOf(address.Addr), address)
	}
}

func (j *validator) isLinked(advertisement int, address netip.Addr) bool {
	return slices.ContainsFunc(j.inputs.Networks[advertisement], func(network netip.Prefix) bool { return network.Contains(address) })
}

// checkSources also reports families without any admitted source.
func (j *validator) checkSources() {
	sources, problems := desired.ParseSources(j.subject.Service)
	for _, problem := range problems {
		j.problem(problem.Reason, "%s", problem.Message)
	}
	if !sources.Restricted {
		return
	}
	admits := map[bool]bool{}
	for _, r := range sources.Admitted.Ranges() {
		admits[r.From().Is4()] = true
	}
	for _, address := range j.subject.Addresses {
		if !admits[address.Is4()] {
			j.problem(millracev1beta1.ReasonInvalid,
				"spec.loadBalancerSourceRanges: no prefix has the family of %s, so that address rejects all clients", address)
		}
	}
}

func (j *validator) checkConflicts() {
	for _, conflict := range j.subject.Conflicts {
		j.problem(millracev1beta1.ReasonPortConflict, "port %s of %s belongs to Service %s",
			conflict.Port, conflict.Address, conflict.Owner)
		j.refusePort(conflict.Address, conflict.Port, millracev1beta1.ReasonPortConflict)
	}
}

// checkPorts ignores named ports, which may differ between endpoints.
func (j *validator) checkPorts() {
	for i := range j.subject.Service.Spec.Ports {
		spec := &j.subject.Service.Spec.Ports[i]
		port := portOf(spec)
		flaw := unserved(spec)
		if flaw == "" {
			continue
		}
		j.problem(millracev1beta1.ReasonUnsupported, "spec.ports[%d].%s", i, flaw)
		for _, address := range j.subject.Addresses {
			j.refusePort(address.Addr, port, millracev1beta1.ReasonUnsupported)
		}
	}
}

// unserved returns why a port cannot be served, starting with the field, or "".
func unserved(port *corev1.ServicePort) string {
	switch port.Protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, "":
		return ""
	case corev1.ProtocolSCTP:
		if target := port.TargetPort.IntValue(); target != 0 && int32(target) != port.Port {
			return fmt.Sprintf("targetPort: %d differs from port %d: ports of SCTP are not translated, because its checksum covers the whole packet", target, port.Port)
		}
		return ""
	}
	return fmt.Sprintf("protocol: %s is not supported: must be TCP, UDP or SCTP", port.Protocol)
}

func (j *validator) checkZones() {
	spec := &j.subject.Service.Spec
	if j.inputs.Zones <= MaxZones || spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return
	}
	mode := j.subject.Service.Annotations[corev1.AnnotationTopologyMode]
	if spec.TrafficDistribution != nil && *spec.TrafficDistribution != "" || mode == "Auto" || mode == "auto" {
		j.result.Notes = append(j.result.Notes, fmt.Sprintf(
			"spec.trafficDistribution is ignored: the nodes are in %d zones, at most %d are supported; all endpoints get equal shares of the clients",
			j.inputs.Zones, MaxZones))
	}
}
