// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// The pool is in the nodes' network, which also contains the control plane's host.
const duplicateObjects = `
apiVersion: millrace.io/v1beta1
kind: VIPPool
metadata: {name: duplicate}
spec:
  addresses: [198.51.100.120-198.51.100.120, "2001:db8:0:1::120-2001:db8:0:1::120"]
  autoAssign: false
---
apiVersion: millrace.io/v1beta1
kind: VIPAdvertisement
metadata: {name: duplicate}
spec: {pools: [duplicate]}
---
apiVersion: v1
kind: Service
metadata: {name: duplicate, namespace: default, annotations: {millrace.io/pool: duplicate}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

// A VIP whose address a host uses is reported with the host and not announced until the host has left.
func TestDuplicateAddress(t *testing.T) {
	held := []string{"198.51.100.120", "2001:db8:0:1::120"}
	link := strings.Fields(onControlPlane(t, "ip", "-o", "-4", "address", "show", "to", "198.51.100.2"))[1]
	// "link/ether 02:… brd …" follows the flags.
	_, ethernet, _ := strings.Cut(onControlPlane(t, "ip", "-o", "link", "show", "dev", strings.TrimSuffix(link, ":")), "link/ether ")
	mac := strings.Fields(ethernet)[0]
	leave := func() {
		for _, address := range held {
			onControlPlane(t, "ip", "address", "del", address, "dev", link)
		}
	}
	for _, address := range held {
		onControlPlane(t, "ip", "address", "add", address, "dev", link, "nodad")
	}
	left := false
	t.Cleanup(func() {
		if !left {
			leave()
		}
	})
	// A pool with VIPs cannot be deleted, so the Service is deleted first.
	cleanup(t, "delete", "vippool/duplicate", "vipadvertisement/duplicate", "--ignore-not-found")
	cleanup(t, "delete", "service/duplicate", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), duplicateObjects))
	s := addresses(t, "duplicate")
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, time.Minute, func(ctx context.Context) error {
			object := &millracev1beta1.VIP{}
			if err := cluster.Get(ctx, object, "vip", millracev1beta1.VIPName(vip)); err != nil {
				return err
			}
			unique := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionUnique)
			if unique == nil || unique.Reason != millracev1beta1.ReasonDuplicateAddress || !strings.Contains(unique.Message, mac) {
				return fmt.Errorf("condition of VIP %s = %+v, want one that contains %s", vip, unique, mac)
			}
			return cluster.RoutedTo(ctx, "router1", vip)
		})
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		object := &corev1.Service{}
		if err := cluster.Get(ctx, object, "service", "duplicate"); err != nil {
			return err
		}
		served := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionServed)
		if served == nil || served.Reason != millracev1beta1.ReasonDuplicateAddress {
			return fmt.Errorf("condition of the Service = %+v", served)
		}
		return nil
	})

	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		if text, err := cluster.Millrace(t.Context(), "duplicates", vip.String()); err != nil || strings.Count(text, mac) != 3 || strings.Count(text, "another host") != 3 {
			t.Errorf("millrace duplicates %s: %v, want %s from three nodes\n%s", vip, err, mac, text)
		}
	}

	leave()
	left = true
	s.routed(t, time.Minute, 1, 2, 3)
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		load, err := cluster.Requests(t.Context(), vip, 100)
		must(t, err)
		if load.Errors > 0 {
			t.Errorf("%d of %d requests to %s failed: %q", load.Errors, load.Requests, vip, load.FirstErrors)
		}
	}
}

func onControlPlane(t *testing.T, command ...string) string {
	t.Helper()
	out, err := cluster.Exec(context.WithoutCancel(t.Context()), "cp", command...)
	must(t, err)
	return string(out)
}
