// SPDX-License-Identifier: Apache-2.0

// Package convert converts API objects to the types of package ipam. It is pure.
package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// OwnerOf returns a Service as the owner of addresses.
func OwnerOf(service *corev1.Service) ipam.Owner {
	return ipam.Owner{Namespace: service.Namespace, Name: service.Name, UID: string(service.UID)}
}

// Request parses a Service. The error names the invalid field or annotation; the request then keeps the
// Service's addresses and asks for no new ones.
func (r Parser) Request(service *corev1.Service, namespace labels.Set, pools []desired.Pool) (ipam.Request, error) {
	policy := service.Spec.IPFamilyPolicy
	request := ipam.Request{
		Owner:      OwnerOf(service),
		RequireAll: policy == nil || *policy != corev1.IPFamilyPolicyPreferDualStack,
		Hints:      hints(service),
		Ports:      ports(service),
	}
	for _, family := range service.Spec.IPFamilies {
		if family == corev1.IPv4Protocol {
			request.Families = append(request.Families, ipam.IPv4)
		} else {
			request.Families = append(request.Families, ipam.IPv6)
		}
	}
	var err error
	if request.SharingKey, err = r.sharingKey(service); err != nil {
		return request, err
	}
	if r.AdoptOnly {
		requestStatusAddresses(&request)
	} else {
		if request.Addresses, err = r.requestedAddresses(service); err != nil {
			return request, err
		}
		request.Pool, _ = valueOf(service, millracev1beta1.AnnotationPool, r.Others.Pools)
	}
	for _, pool := range pools {
		if pool.Selects(namespace, service.Labels) {
			request.Eligible = append(request.Eligible, pool.Name)
		}
		if most, limited := pool.Quota(namespace); limited {
			if request.Quotas == nil {
				request.Quotas = map[string]int{}
			}
			request.Quotas[pool.Name] = most
		}
	}
	return request, nil
}

func requestStatusAddresses(request *ipam.Request) {
	request.AdoptOnly = true
	request.Addresses = slices.Clone(request.Hints)
	// A load balancer that assigned one of two families assigned what it had.
	request.RequireAll = false
}

// ports returns sorted ports; the default protocol is TCP, as in the API.
func ports(service *corev1.Service) []ipam.Port {
	var list []ipam.Port
	for _, port := range service.Spec.Ports {
		list = append(list, ipam.Port{Number: uint16(port.Port), Protocol: cmp.Or(string(port.Protocol), string(corev1.ProtocolTCP))})
	}
	slices.SortFunc(list, ipam.Port.Compare)
	return slices.Compact(list)
}

const maxSharingKey = 253

func (r Parser) sharingKey(service *corev1.Service) (string, error) {
	key, field := valueOf(service, millracev1beta1.AnnotationSharingKey, r.Others.SharingKeys)
	if len(key) > maxSharingKey {
		return "", fmt.Errorf("%s: exceeds %d bytes", field, maxSharingKey)
	}
	return key, nil
}

const maxRequested = 8

// requestedAddresses parses the annotation or, without it, the deprecated Service.spec.loadBalancerIP.
func (r Parser) requestedAddresses(service *corev1.Service) ([]netip.Addr, error) {
	text, source := valueOf(service, millracev1beta1.AnnotationAddresses, r.Others.Addresses)
	if source == "" {
		text, source = service.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	}
	var addresses []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		address, err := desired.ParseAddressOrName(part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if slices.Contains(addresses, address) {
			return nil, fmt.Errorf("%s: %s is a duplicate", source, address)
		}
		addresses = append(addresses, address)
	}
	for _, family := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		others := func(address netip.Addr) bool { return ipam.FamilyOf(address) != family }
		if count := len(slices.DeleteFunc(slices.Clone(addresses), others)); count > maxRequested {
			return nil, fmt.Errorf("%s: %d %s addresses exceed the maximum of %d", source, count, family, maxRequested)
		}
	}
	return addresses, nil
}

func hints(service *corev1.Service) []netip.Addr {
	var addresses []netip.Addr
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if address, err := desired.ParseAddress(ingress.IP); err == nil {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
