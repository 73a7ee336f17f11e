// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// dnsPods run on two of the three nodes.
const dnsPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: dns, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: dns}}
  template:
    metadata: {labels: {app: dns}}
    spec:
      terminationGracePeriodSeconds: 15
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: dns}}}
      containers:
      - name: echo
        image: millrace.test/echo:dev
        imagePullPolicy: IfNotPresent
        args: [serve]
        env:
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 128Mi}}
`

func sharer(name, app, protocol, policy string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, annotations: {millrace.io/sharing-key: dns}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: %s
  ipFamilyPolicy: RequireDualStack
  selector: {app: %s}
  ports: [{name: dns, port: 53, targetPort: 8080, protocol: %s}]
`, name, policy, app, protocol)
}

func dnsNodes(ctx context.Context) ([]int, error) {
	pods, err := cluster.PodsByNode(ctx, "default", "app=dns")
	var nodes []int
	for node := range pods {
		number := 0
		if _, err := fmt.Sscanf(node, "node%d", &number); err != nil {
			return nil, fmt.Errorf("node %q: %w", node, err)
		}
		nodes = append(nodes, number)
	}
	slices.Sort(nodes)
	return nodes, err
}

func answeredBy(load harness.Load, deployment string) error {
	for pod := range load.PerPod {
		if !strings.HasPrefix(pod, deployment+"-") {
			return fmt.Errorf("pods %v answered, want those of %s", load.PerPod, deployment)
		}
	}
	return nil
}

// Two Services share an address: TCP port 53 with policy Cluster and UDP port 53 with policy Local.
func TestTwoServicesShareAnAddress(t *testing.T) {
	cleanup(t, "delete", "service/dns-tcp", "service/dns-udp", "service/dns-late", "deployment/dns", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), dnsPods))
	must(t, cluster.Apply(t.Context(), sharer("dns-tcp", "echo", "TCP", "Cluster")))
	tcp := addresses(t, "dns-tcp")
	must(t, cluster.Apply(t.Context(), sharer("dns-udp", "dns", "UDP", "Local")))
	udp := addresses(t, "dns-udp")
	if tcp.ipv4 != udp.ipv4 || tcp.ipv6 != udp.ipv6 {
		t.Fatalf("addresses of the Services = %+v and %+v", tcp, udp)
	}
	must(t, cluster.RolledOut(t.Context(), "default", "deployment/dns"))
	tcp.routed(t, 30*time.Second, 1, 2, 3)
	logDrops(t, ":53")
	for _, vip := range []netip.Addr{tcp.ipv4, tcp.ipv6} {
		datagramsAnswered(t, vip)
		requestsAnswered(t, vip)
	}
	out, err := cluster.Millrace(t.Context(), "vips", "-o", "wide")
	must(t, err)
	for _, line := range []string{"default/dns-tcp", "default/dns-udp"} {
		if strings.Count(out, line) != 2 {
			t.Errorf("output of millrace vips does not contain %s for two addresses:\n%s", line, out)
		}
	}

	// A later Service that requests a used port is rejected.
	options := fmt.Sprintf(`millrace.io/sharing-key: dns, millrace.io/addresses: "%s,%s"`, tcp.ipv4, tcp.ipv6)
	must(t, cluster.Apply(t.Context(), strings.Replace(sharer("dns-late", "dns", "TCP", "Cluster"), "millrace.io/sharing-key: dns", options, 1)))
	eventually(t, 20*time.Second, func(ctx context.Context) error {
		condition, err := cluster.AssignedCondition(ctx, "default", "dns-late")
		if err == nil && (condition.Status != metav1.ConditionFalse || condition.Reason != millracev1beta1.ReasonPortConflict) {
			err = fmt.Errorf("condition = %+v, want %s", condition, millracev1beta1.ReasonPortConflict)
		}
		return err
	})
	requestsAnswered(t, tcp.ipv4)

	// After the deletion of one Service the other keeps the address and the waiting Service gets the port.
	kubectl(t, "delete", "service", "dns-tcp")
	late := addresses(t, "dns-late")
	if late.ipv4 != udp.ipv4 || late.ipv6 != udp.ipv6 {
		t.Fatalf("addresses of the Services = %+v and %+v", late, udp)
	}
	kubectl(t, "delete", "service", "dns-late")
	nodes, err := dnsNodes(t.Context())
	must(t, err)
	udp.routed(t, 30*time.Second, nodes...)
	for _, vip := range []netip.Addr{udp.ipv4, udp.ipv6} {
		datagramsAnswered(t, vip)
	}
}

// logDrops logs recent drops with a word after a failure.
func logDrops(t *testing.T, word string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		pods, err := cluster.Kubectl(ctx, "-n", "millrace-system", "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "name")
		if err != nil {
			t.Log(err)
		}
		for _, pod := range strings.Fields(string(pods)) {
			out, err := cluster.Kubectl(ctx, "-n", "millrace-system", "exec", pod, "--", "/lbagent", "drops")
			if err != nil {
				t.Log(err)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, word) || strings.Contains(line, "reasons") {
					t.Logf("%s: %s", pod, strings.TrimSpace(line))
				}
			}
		}
	})
}

// datagramsAnswered waits until both pods of dns answer at UDP port 53.
func datagramsAnswered(t *testing.T, vip netip.Addr) {
	t.Helper()
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		load, err := cluster.DatagramsTo(ctx, netip.AddrPortFrom(vip, 53), 300)
		if err == nil {
			err = load.Check(2, client(vip))
		}
		if err == nil {
			err = answeredBy(load, "dns")
		}
		return err
	})
}

func requestsAnswered(t *testing.T, vip netip.Addr) {
	t.Helper()
	load, err := cluster.RequestsTo(t.Context(), netip.AddrPortFrom(vip, 53), 600)
	must(t, err)
	must(t, load.Check(6, client(vip)))
	must(t, answeredBy(load, "echo"))
}
