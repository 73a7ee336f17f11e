// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func (b *builder) buildVIPs() {
	f := b.previous
	f.objects.advance(b.snapshot)
	f.objects.touch(b.moved)
	f.objects.touchAddresses(b.repooled)
	endpoints := newEndpoints(b)
	endpoints.readRoutes(f.objects.services)
	came, went := delta.Between(f.vips, b.snapshot.VIPs)
	newRoutes, oldRoutes := delta.Between(f.routes, b.snapshot.Routes)
	others := b.readHosts() || len(newRoutes)+len(oldRoutes) > 0
	f.vips, f.routes = b.snapshot.VIPs, b.snapshot.Routes
	b.occupants = f.hosts.by
	var left, fresh []*readVIP
	for _, object := range went {
		left = append(left, f.drop(object))
	}
	for _, object := range f.stale(came, others, b.occupants, endpoints) {
		if f.read[object] != nil {
			left = append(left, f.drop(object))
		}
		vip := b.readVIP(object, endpoints)
		f.add(object, vip)
		fresh = append(fresh, vip)
	}
	f.replace(b.model, left, fresh)
	b.model.Frontends = f.frontends
	for object := range f.withProblems {
		b.model.Problems = append(b.model.Problems, f.read[object].problems...)
	}
	endpoints.reportUnlocated()
}

// readVIP parses a VIP and its frontends. The address is invalid if the object is.
func (b *builder) readVIP(object *millracev1beta1.VIP, endpoints *endpoints) *readVIP {
	address, problems := desired.ParseVIP(object)
	if b.reported(problems) {
		return &readVIP{}
	}
	// Collect the VIP's problems separately.
	before := b.model.Problems
	b.model.Problems = nil
	endpoints.forVIP()
	claimants := b.claimants(object, b.previous.objects.services)
	read := &readVIP{VIP: VIP{
		Address: address, Pool: object.Spec.Pool, Release: releaseOf(claimants),
		Created: object.CreationTimestamp.Time, Duplicate: isDuplicate(object),
		Canary: b.previous.canaries.peers[object],
	}}
	for _, claimant := range claimants {
		read.Services = append(read.Services, VIPService{Name: claimant.name, Labels: claimant.service.Labels})
	}
	slices.SortFunc(read.Services, func(a, b VIPService) int { return a.Name.compare(b.Name) })
	if read.Occupant = occupant(b.occupants, address, object); read.Occupant != "" {
		b.problem(ObjectReference{Kind: "VIP", Name: object.Name}, millracev1beta1.ReasonOccupied,
			"%s", desired.OccupiedVIP(address, read.Occupant))
	} else {
		if host, found := b.occupants[address]; found {
			read.newerOwner = host.By
			b.problem(ObjectReference{Kind: "VIP", Name: object.Name}, millracev1beta1.ReasonOccupied, "%s", desired.NewerHostMessage(address, host.By))
		}
		read.frontends = b.buildFrontends(address, claimants, endpoints)
	}
	share(read.frontends)
	slices.SortFunc(read.frontends, func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
	read.problems, b.model.Problems = b.model.Problems, before
	read.independent = !endpoints.others && !endpoints.hasRoutedBackends(object)
	return read
}

// isDuplicate reports whether the operator confirmed that a host had the address first.
func isDuplicate(object *millracev1beta1.VIP) bool {
	unique := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionUnique)
	return unique != nil && unique.Status == metav1.ConditionFalse && unique.Reason == millracev1beta1.ReasonDuplicateAddress
}

func (b *builder) buildFrontends(vip netip.Addr, claimants []claimant, endpoints *endpoints) (frontends []*Frontend) {
	owners := portOwners(vip, claimants)
	built := map[forwarding.FrontendKey]bool{}
	for _, claimant := range claimants {
		name, service := claimant.name, claimant.service
		endpoints.forService()
		endpoints.readDistribution(service)
		affinity := b.affinity(name, service)
		sources := b.readSources(service)
		for i := range service.Spec.Ports {
			port := &service.Spec.Ports[i]
			key, ok := frontendKey(vip, port)
			if !ok {
				b.unservedPort(name, i, port)
				continue
			}
			if owner := owners[key]; owner != name || built[key] {
				b.problem(name.reference(), millracev1beta1.ReasonPortConflict,
					"spec.ports[%d].port: %s is served for the Service %s, which claimed it first", i, key, owner)
				continue
			}
			built[key] = true
			frontend := &Frontend{
				Key: key, Service: name, PortName: port.Name,
				Local:    service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
				Affinity: affinity, HealthPort: healthPort(service),
			}
			b.restrict(frontend, sources)
			endpoints.fill(frontend)
			frontends = append(frontends, frontend)
		}
	}
	return frontends
}

func healthPort(service *corev1.Service) uint16 {
	port := service.Spec.HealthCheckNodePort
	if service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || port < 1 || port > 65535 {
		return 0
	}
	return uint16(port)
}

func (b *builder) unservedPort(name ServiceName, i int, port *corev1.ServicePort) {
	if _, supported := protocolNumber(port.Protocol); !supported {
		b.problem(name.reference(), millracev1beta1.ReasonUnsupported,
			"spec.ports[%d].protocol: %s is not supported: must be TCP, UDP or SCTP", i, port.Protocol)
		return
	}
	b.problem(name.reference(), millracev1beta1.ReasonInvalid,
		"spec.ports[%d].port: %d is not between 1 and 65535", i, port.Port)
}

// protocolNumber returns the IP protocol number and whether the protocol is supported. An empty protocol means
// TCP, as in the API.
func protocolNumber(protocol corev1.Protocol) (uint8, bool) {
	switch protocol {
	case corev1.ProtocolTCP, "":
		return forwarding.ProtocolTCP, true
	case corev1.ProtocolUDP:
		return forwarding.ProtocolUDP, true
	case corev1.ProtocolSCTP:
		return forwarding.ProtocolSCTP, true
	default:
		return 0, false
	}
}

func addressType(address netip.Addr) discoveryv1.AddressType {
	if address.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}
