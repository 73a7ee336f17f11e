// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

const shortLived = `
apiVersion: v1
kind: Service
metadata: {name: short-lived, namespace: default}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

func TestDeletedServiceLeavesNothing(t *testing.T) {
	cleanup(t, "delete", "service", "short-lived", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), shortLived))
	s := addresses(t, "short-lived")
	s.routed(t, 30*time.Second, 1, 2, 3)
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		must(t, allSucceed(t.Context(), vip, 20))
		for _, agent := range agents(t) {
			must(t, mapsHold(t.Context(), agent, vip, true))
		}
	}

	kubectl(t, "delete", "service", "short-lived")
	s.routed(t, 30*time.Second)
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			out, err := cluster.Kubectl(ctx, "get", "vip", "-o", "name")
			if err == nil && strings.Contains(string(out), "/"+millracev1beta1.VIPName(vip)+"\n") {
				err = fmt.Errorf("VIP object of %s was not deleted", vip)
			}
			return err
		})
		for _, agent := range agents(t) {
			eventually(t, 30*time.Second, func(ctx context.Context) error { return mapsHold(ctx, agent, vip, false) })
		}
	}
}

func agents(t *testing.T) []string {
	t.Helper()
	var pods corev1.PodList
	must(t, cluster.Get(t.Context(), &pods, "-n", "millrace-system", "pods", "-l", "app.kubernetes.io/component=agent"))
	if len(pods.Items) != 3 {
		t.Fatalf("%d agents run, want 3", len(pods.Items))
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names
}

// mapsHold checks whether a node's maps contain a VIP.
func mapsHold(ctx context.Context, agent string, vip netip.Addr, want bool) error {
	out, err := cluster.Kubectl(ctx, "-n", "millrace-system", "exec", agent, "--", "/lbagent", "dump", "--output", "json")
	if err != nil {
		return err
	}
	var held consoleapi.Maps
	if err := json.Unmarshal(out, &held); err != nil {
		return fmt.Errorf("parse the maps of %s: %w", agent, err)
	}
	have := slices.Contains(held.VIPs, vip) ||
		slices.ContainsFunc(held.Frontends, func(f consoleapi.MapFrontend) bool { return f.VIP == vip })
	if have != want {
		return fmt.Errorf("%s: maps contain %s = %t, want %t", agent, vip, have, want)
	}
	return nil
}

func smallPool(addresses string) string {
	return fmt.Sprintf(`
apiVersion: millrace.io/v1beta1
kind: VIPPool
metadata: {name: small}
spec:
  addresses: [%q]
  autoAssign: false
`, addresses)
}

func smallPoolService(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, annotations: {millrace.io/pool: small}}
spec:
  type: LoadBalancer
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
`, name)
}

func TestPoolTooSmall(t *testing.T) {
	cleanup(t, "delete", "vippool", "small", "--ignore-not-found")
	cleanup(t, "delete", "service", "first", "second", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), smallPool("203.0.113.240/32")))
	must(t, cluster.Apply(t.Context(), smallPoolService("first")))
	eventually(t, 20*time.Second, func(ctx context.Context) error { return hasAddress(ctx, "first", "203.0.113.240") })

	must(t, cluster.Apply(t.Context(), smallPoolService("second")))
	eventually(t, 20*time.Second, func(ctx context.Context) error {
		condition, err := cluster.AssignedCondition(ctx, "default", "second")
		if err != nil {
			return err
		}
		if condition.Status != metav1.ConditionFalse || condition.Reason != millracev1beta1.ReasonPoolExhausted || !strings.Contains(condition.Message, "small") {
			return fmt.Errorf("condition = %+v, want %s with the pool in its message", condition, millracev1beta1.ReasonPoolExhausted)
		}
		return nil
	})
	eventually(t, 20*time.Second, func(ctx context.Context) error { return hasEvent(ctx, "second", millracev1beta1.ReasonPoolExhausted) })

	must(t, cluster.Apply(t.Context(), smallPool("203.0.113.240/31")))
	eventually(t, 20*time.Second, func(ctx context.Context) error { return hasAddress(ctx, "second", "203.0.113.241") })
	must(t, hasAddress(t.Context(), "first", "203.0.113.240"))
}

func hasAddress(ctx context.Context, name, want string) error {
	ipv4, _, err := cluster.Addresses(ctx, "default", name)
	if err == nil && ipv4.String() != want {
		err = fmt.Errorf("address of Service %s = %s, want %s", name, ipv4, want)
	}
	return err
}

func hasEvent(ctx context.Context, service, reason string) error {
	out, err := cluster.Kubectl(ctx, "get", "events", "--field-selector", "involvedObject.kind=Service,involvedObject.name="+service, "-o", "jsonpath={.items[*].reason}")
	if err == nil && !slices.Contains(strings.Fields(string(out)), reason) {
		err = fmt.Errorf("events of Service %s = %q, want %s among them", service, out, reason)
	}
	return err
}

func TestInvalidInputIsReported(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	cases := []struct {
		name, kind, manifest, field string
	}{
		{"inverted", "vippool", `{"spec":{"addresses":["198.51.100.20-198.51.100.10"]}}`, "spec.addresses[0]"},
		{"overlapping", "vippool", `{"spec":{"addresses":["203.0.113.64/26"]}}`, "spec.addresses[0]"},
		{"no-address", "lbpeer", `{"spec":{"peerASN":64512,"localASN":64513}}`, "spec.router"},
		{"bad-address", "lbpeer", `{"spec":{"router":{"address":"tor"},"peerASN":64512,"localASN":64513}}`, "spec.router.address"},
	}
	kinds := map[string]string{"vippool": "VIPPool", "lbpeer": "LBPeer"}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cleanup(t, "delete", c.kind, c.name, "--ignore-not-found")
			head := fmt.Sprintf(`{"apiVersion":"millrace.io/v1beta1","kind":%q,"metadata":{"name":%q},`, kinds[c.kind], c.name)
			if err := cluster.Apply(t.Context(), head+c.manifest[1:]); err != nil {
				if !strings.Contains(err.Error(), c.field) {
					t.Fatalf("the error does not mention %s: %v", c.field, err)
				}
				return
			}
			eventually(t, 20*time.Second, func(ctx context.Context) error { return notReadyNames(ctx, c.kind, c.name, c.field) })
		})
	}
	must(t, cluster.RoutedTo(t.Context(), "router1", s.ipv4, 1, 2, 3))
	load, err := cluster.Requests(t.Context(), s.ipv4, 600)
	must(t, err)
	must(t, load.Check(6, harness.ClientIPv4))
}

// notReadyNames checks that an object's condition Ready is false and names the field.
func notReadyNames(ctx context.Context, kind, name, field string) error {
	var object struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := cluster.Get(ctx, &object, kind, name); err != nil {
		return err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == millracev1beta1.ConditionReady {
			if condition.Status == metav1.ConditionFalse && strings.Contains(condition.Message, field) {
				return nil
			}
			return fmt.Errorf("%s %s: Ready = %+v, want False with a message that contains %s", kind, name, condition, field)
		}
	}
	return errors.New(kind + " " + name + " has no condition Ready yet")
}
