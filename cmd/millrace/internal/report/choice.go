// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
)

// ErrNoSuchVIP is returned for a requested VIP that does not exist.
var ErrNoSuchVIP = errors.New("no such VIP")

// Choice selects the VIPs of a report.
type Choice struct {
	Namespace string
	// Wanted are addresses and Services, as namespace/name or as names in Namespace; empty: all VIPs.
	Wanted []string
	// Default is the namespace of Services that are given by name alone, if Namespace is empty; empty: any.
	Default string
	// Services selects VIPs by the labels of their Services; nil: all.
	Services labels.Selector
}

// Apply removes other VIPs, or returns ErrNoSuchVIP for an entry of Wanted without one.
func (c Choice) Apply(in *Input) error {
	chosen := make([]bool, len(in.VIPs))
	if len(c.Wanted) == 0 {
		for i := range in.VIPs {
			chosen[i] = c.Namespace == "" || slices.ContainsFunc(in.VIPs[i].Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
				return claim.Namespace == c.Namespace
			})
		}
	}
	for _, wanted := range c.Wanted {
		matches, subject := c.matcher(wanted)
		found := false
		for i := range in.VIPs {
			if matches(&in.VIPs[i]) {
				found, chosen[i] = true, true
			}
		}
		if !found {
			if missing := c.missing(in, wanted); missing != nil {
				return fmt.Errorf("%w: %w", ErrNoSuchVIP, missing)
			}
			services := c.named(in, wanted)
			if len(services) == 0 {
				return fmt.Errorf("%w: %s; see millrace vips", ErrNoSuchVIP, subject)
			}
			in.Unassigned = append(in.Unassigned, services...)
		}
	}
	selected := c.selected(in)
	vips := make([]millracev1beta1.VIP, 0, len(in.VIPs))
	for i := range in.VIPs {
		if chosen[i] && selected(&in.VIPs[i]) {
			vips = append(vips, in.VIPs[i])
		}
	}
	in.VIPs = vips
	return nil
}

// Only removes VIPs and Services of other namespaces.
func (c Choice) Only(in *Input) error {
	in.Services = slices.DeleteFunc(slices.Clone(in.Services), func(service corev1.Service) bool { return service.Namespace != c.Namespace })
	return c.Apply(in)
}

// split returns the namespace and the name of a wanted Service; an empty namespace stands for all.
func (c Choice) split(wanted string) (namespace, name string) {
	namespace, name, full := strings.Cut(wanted, "/")
	if !full {
		return cmp.Or(c.Namespace, c.Default), wanted
	}
	return namespace, name
}

// named returns the existing Services that wanted stands for.
func (c Choice) named(in *Input, wanted string) []types.NamespacedName {
	namespace, name := c.split(wanted)
	var found []types.NamespacedName
	for i := range in.Services {
		if service := &in.Services[i]; service.Name == name && (namespace == "" || service.Namespace == namespace) {
			found = append(found, types.NamespacedName{Namespace: service.Namespace, Name: name})
		}
	}
	return found
}

func (c Choice) missing(in *Input, wanted string) error {
	if _, err := netip.ParseAddr(wanted); err == nil {
		return nil
	}
	namespace, name := c.split(wanted)
	missing := &apierror.Missing{Kind: "Service", Name: strings.TrimPrefix(namespace+"/"+name, "/")}
	for i := range in.Services {
		service := &in.Services[i]
		switch {
		case service.Name == name && (namespace == "" || service.Namespace == namespace):
			return nil
		case namespace == "":
			missing.Names = append(missing.Names, service.Name)
		default:
			missing.Names = append(missing.Names, service.Namespace+"/"+service.Name)
		}
	}
	return missing
}

func (c Choice) matcher(wanted string) (matches func(*millracev1beta1.VIP) bool, subject string) {
	if address, err := netip.ParseAddr(wanted); err == nil {
		return func(vip *millracev1beta1.VIP) bool {
			have, err := netip.ParseAddr(vip.Spec.Address)
			return err == nil && have == address.Unmap()
		}, "there is no VIP " + address.Unmap().String()
	}
	namespace, name := c.split(wanted)
	subject = fmt.Sprintf("Service %s/%s has none", namespace, name)
	if namespace == "" {
		subject = fmt.Sprintf("no Service %s has one, in any namespace", name)
	}
	return func(vip *millracev1beta1.VIP) bool {
		return slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
			return claim.Name == name && (namespace == "" || claim.Namespace == namespace)
		})
	}, subject
}

func (c Choice) selected(in *Input) func(*millracev1beta1.VIP) bool {
	if c.Services == nil || c.Services.Empty() {
		return func(*millracev1beta1.VIP) bool { return true }
	}
	type name struct{ namespace, name string }
	has := map[name]bool{}
	for i := range in.Services {
		service := &in.Services[i]
		has[name{service.Namespace, service.Name}] = c.Services.Matches(labels.Set(service.Labels))
	}
	return func(vip *millracev1beta1.VIP) bool {
		return slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
			return has[name{claim.Namespace, claim.Name}]
		})
	}
}
