// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Targets are from annotations, or else from statuses.
const named = `
apiVersion: v1
kind: Service
metadata:
  name: named
  namespace: default
  annotations: {external-dns.alpha.kubernetes.io/hostname: "service.example.com"}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, selector: {app: echo}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata:
  name: aimed
  namespace: default
  annotations:
    external-dns.alpha.kubernetes.io/hostname: aimed.example.com
    external-dns.alpha.kubernetes.io/target: 203.0.113.7
spec: {type: LoadBalancer, selector: {app: echo}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: named, namespace: default}
spec:
  ingressClassName: millrace
  rules: [{host: ingress.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: echo, port: {name: http}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: aimed
  namespace: default
  annotations: {external-dns.alpha.kubernetes.io/target: edge.example.com}
spec:
  ingressClassName: millrace
  rules: [{host: aimed-ingress.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: echo, port: {name: http}}}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: named, namespace: default}
spec: {gatewayClassName: millrace, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: named, namespace: default}
spec:
  parentRefs: [{name: named}]
  hostnames: [route.example.com]
  rules: [{backendRefs: [{name: echo, port: 80}]}]
`

// TestExternalDNS reads Services, Ingresses and routes with ExternalDNS' sources.
func TestExternalDNS(t *testing.T) {
	must(t, cluster.InstallGateway(t.Context()))
	cleanup(t, "delete", "service/named", "service/aimed", "ingress/named", "ingress/aimed", "gateway/named", "httproute/named", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), named))
	program := externalDNS(t)
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		want, err := wantedRecords(ctx)
		if err != nil {
			return err
		}
		out, err := cluster.Exec(ctx, "cp", program, "--kubeconfig", cluster.Kubeconfig())
		if err != nil {
			return err
		}
		records := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(records)
		if !slices.Equal(records, want) {
			return fmt.Errorf("records of ExternalDNS = %q, want %q", records, want)
		}
		return nil
	})
}

func externalDNS(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "externaldns")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join(cluster.Root(), "hack", "tools", "externaldns")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build ExternalDNS: %v: %s", err, out)
	}
	return program
}

func wantedRecords(ctx context.Context) ([]string, error) {
	records := []string{"aimed.example.com A 203.0.113.7", "aimed-ingress.example.com CNAME edge.example.com"}
	add := func(name, service string) error {
		ipv4, ipv6, err := cluster.DualStack(ctx, "default", service)
		records = append(records, fmt.Sprintf("%s A %s", name, ipv4), fmt.Sprintf("%s AAAA %s", name, ipv6))
		return err
	}
	if err := add("service.example.com", "named"); err != nil {
		return nil, err
	}
	var ingress networkingv1.Ingress
	if err := cluster.Get(ctx, &ingress, "-n", "default", "ingress", "named"); err != nil {
		return nil, err
	}
	var gateway gatewayv1.Gateway
	if err := cluster.Get(ctx, &gateway, "-n", "default", "gateway", "named"); err != nil {
		return nil, err
	}
	behind := map[string][]string{}
	for _, address := range ingress.Status.LoadBalancer.Ingress {
		behind["ingress.example.com"] = append(behind["ingress.example.com"], address.IP)
	}
	for _, address := range gateway.Status.Addresses {
		behind["route.example.com"] = append(behind["route.example.com"], address.Value)
	}
	vips, err := vipsOfServices(ctx)
	if err != nil {
		return nil, err
	}
	for name, addresses := range behind {
		for _, address := range addresses {
			if !vips[address] {
				return nil, fmt.Errorf("%s has %s, which is not the VIP of a Service", name, address)
			}
			kind := "A"
			if strings.Contains(address, ":") {
				kind = "AAAA"
			}
			records = append(records, name+" "+kind+" "+address)
		}
	}
	if len(behind) != 2 {
		return nil, fmt.Errorf("not both names have addresses: %v", behind)
	}
	slices.Sort(records)
	return records, nil
}

func vipsOfServices(ctx context.Context) (map[string]bool, error) {
	var services corev1.ServiceList
	if err := cluster.Get(ctx, &services, "-A", "services"); err != nil {
		return nil, err
	}
	vips := map[string]bool{}
	for i := range services.Items {
		for _, ingress := range services.Items[i].Status.LoadBalancer.Ingress {
			vips[ingress.IP] = true
		}
	}
	return vips, nil
}
