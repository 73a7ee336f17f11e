// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

const (
	manyServices  = 100
	manyEndpoints = 20
	// idleTime exceeds the interval of half a minute for writes of counters.
	idleTime = time.Minute
)

// TestIdleWritesNothing creates many Services with manual endpoints, waits until all are announced and
// counts writes of Millrace's kinds.
func TestIdleWritesNothing(t *testing.T) {
	cleanup(t, "delete", "namespace", "many", "--ignore-not-found", "--timeout=120s")
	kubectl(t, "create", "namespace", "many")
	var manifest strings.Builder
	for i := range manyServices {
		writeService(&manifest, i)
	}
	must(t, cluster.Apply(t.Context(), manifest.String()))
	eventually(t, 60*time.Second, func(ctx context.Context) error { return allAssigned(ctx) })
	eventually(t, 90*time.Second, func(ctx context.Context) error { return allAnnounced(ctx) })

	// The last status writes may be pending, because counters are written twice a minute.
	var last map[string]int
	var since time.Time
	eventually(t, 100*time.Second+idleTime, func(ctx context.Context) error {
		now, err := writes(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(last, now) {
			err = fmt.Errorf("writes continue: %v, then %v", last, now)
			last, since = now, time.Now()
			return err
		}
		if idle := time.Since(since); idle < idleTime {
			// Reading metrics also loads the API server.
			select {
			case <-ctx.Done():
			case <-time.After(min(idleTime-idle, 5*time.Second)):
			}
			return fmt.Errorf("no write for %.0f s, want %.0f s", idle.Seconds(), idleTime.Seconds())
		}
		return nil
	})
}

func writeService(manifest *strings.Builder, i int) {
	fmt.Fprintf(manifest, `
apiVersion: v1
kind: Service
metadata: {name: many-%[1]d, namespace: many}
spec:
  type: LoadBalancer
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-%[1]d, namespace: many, labels: {kubernetes.io/service-name: many-%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
`, i)
	for e := range manyEndpoints {
		fmt.Fprintf(manifest, "- {addresses: [198.18.%d.%d], nodeName: node%d, conditions: {ready: true}}\n", 200+e, 1+i, 1+e%3)
	}
	manifest.WriteString("---\n")
}

func allAssigned(ctx context.Context) error {
	var services corev1.ServiceList
	if err := cluster.Get(ctx, &services, "-n", "many", "services"); err != nil {
		return err
	}
	assigned := 0
	for _, service := range services.Items {
		if len(service.Status.LoadBalancer.Ingress) > 0 {
			assigned++
		}
	}
	if assigned != manyServices {
		return fmt.Errorf("%d of %d Services have an address", assigned, manyServices)
	}
	return nil
}

// allAnnounced checks that every node reports all VIPs as announced and that the router has them.
func allAnnounced(ctx context.Context) error {
	var reports millracev1beta1.LBNodeReportList
	if err := cluster.Get(ctx, &reports, "lbnodereports"); err != nil {
		return err
	}
	if len(reports.Items) == 0 {
		return errors.New("no LBNodeReports exist")
	}
	for _, report := range reports.Items {
		if announced := int(report.Status.VIPs.Announced); announced < manyServices {
			return fmt.Errorf("%s announces %d VIPs, want at least %d", report.Name, announced, manyServices)
		}
	}
	raw, err := cluster.Run(ctx, "vtysh", "router1", "--", "-c", "show bgp ipv4 unicast json")
	if err != nil {
		return err
	}
	var table struct {
		Routes map[string]json.RawMessage `json:"routes"`
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		return err
	}
	if len(table.Routes) < manyServices {
		return fmt.Errorf("router1 has %d routes, want at least %d", len(table.Routes), manyServices)
	}
	return nil
}

var requestTotal = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)

var label = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)

// writes returns the API server's write requests by resource and verb, for Millrace's kinds and Services.
func writes(ctx context.Context) (map[string]int, error) {
	raw, err := cluster.Kubectl(ctx, "get", "--raw", "/metrics")
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	found := false
	for _, match := range requestTotal.FindAllStringSubmatch(string(raw), -1) {
		found = true
		labels := map[string]string{}
		for _, pair := range label.FindAllStringSubmatch(match[1], -1) {
			labels[pair[1]] = pair[2]
		}
		switch labels["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		default:
			continue
		}
		if labels["group"] != millracev1beta1.GroupVersion.Group && labels["resource"] != "services" {
			continue
		}
		value, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return nil, err
		}
		counts[labels["verb"]+" "+labels["resource"]+"/"+labels["subresource"]] += int(value)
	}
	if !found {
		return nil, fmt.Errorf("apiserver_request_total is missing in the metrics of the API server")
	}
	return counts, nil
}
