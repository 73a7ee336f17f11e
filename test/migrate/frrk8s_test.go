// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/test/harness"
)

// othersRouter is a BGP daemon on host cp with sessions outside of MetalLB.
const othersRouter = `
router bgp 64520
 bgp router-id 198.51.100.2
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as 64513
 neighbor nodes passive
 neighbor 198.51.100.11 peer-group nodes
 neighbor 198.51.100.12 peer-group nodes
 neighbor 198.51.100.13 peer-group nodes
`

// ofOthers configures a session of another user of frr-k8s.
const ofOthers = `
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: others, namespace: metallb-system}
spec: {bgp: {routers: [{asn: 64513, neighbors: [{address: 198.51.100.2, asn: 64520, holdTime: 9s, keepaliveTime: 3s}]}]}}
`

// learning requires MetalLB's session.
const learning = `
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: learning, namespace: metallb-system}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: node2}}
  bgp: {routers: [{asn: 64513, neighbors: [{address: 198.51.100.101, asn: 64512, holdTime: 9s, keepaliveTime: 3s, toReceive: {allowed: {prefixes: [{prefix: 198.51.100.224/28}]}}}]}]}
`

// TestMetalLBFRRK8s is TestMetalLBFRR in mode frr-k8s, whose daemon has sessions of MetalLB and others.
// Sessions of others are never lost.
func TestMetalLBFRRK8s(t *testing.T) {
	begin(t, frrK8sMode)
	others := startOthersRouter(t)
	must(t, cluster.Apply(t.Context(), metalLBObjects))
	must(t, cluster.Apply(t.Context(), announcedByFRR))
	must(t, cluster.Apply(t.Context(), ofOthers))
	must(t, cluster.Apply(t.Context(), twentyServices()))
	m := &move{given: givenAddresses(t), targets: announcedTargets(t, frrK8sMode)}
	m.served(t)
	before := others.sessions(t)
	m.hold(t)

	m.take(t)
	refused(t)
	m.there(t)
	onlyOthers(t)
	m.back(t)
	if after := others.sessions(t); !maps.Equal(after, before) {
		t.Errorf("sessions of other configurations = %v, previously %v", after, before)
	}
}

// onlyOthers checks the configuration of frr-k8s while Millrace has all nodes.
func onlyOthers(t *testing.T) {
	t.Helper()
	var left metav1.PartialObjectMetadataList
	must(t, cluster.Get(t.Context(), &left, "-n", metalLBNamespace, "frrconfigurations"))
	if len(left.Items) != 1 || left.Items[0].Name != "others" {
		t.Errorf("FRRConfigurations remain: %+v", left.Items)
	}
}

// refused adds an FRRConfiguration that requires a session that Millrace needs.
func refused(t *testing.T) {
	t.Helper()
	must(t, cluster.Apply(t.Context(), learning))
	out, err := cluster.Millrace(t.Context(), "migrate", "nodes")
	if want := "FRRConfiguration metallb-system/learning"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "node2") {
		t.Errorf("session managed by frr-k8s did not block the migration: %v, want %q\n%s", err, want, out)
	}
	converted := millrace(t, "migrate", "metallb", metalLBFile(t, "frrconfigurations"))
	if want := "FRRConfiguration learning: it has router 198.51.100.101 of BGPPeer router1"; !strings.Contains(converted, want) {
		t.Errorf("millrace migrate metallb did not report %q:\n%s", want, converted)
	}
	kubectl(t, "-n", metalLBNamespace, "delete", "frrconfiguration", "learning")
}

type othersDaemon string

func startOthersRouter(t *testing.T) othersDaemon {
	t.Helper()
	directory := t.TempDir()
	config, pid := filepath.Join(directory, "bgpd.conf"), filepath.Join(directory, "bgpd.pid")
	must(t, writeFile(config, othersRouter))
	// It runs without zebra, kernel routes and user.
	_, err := cluster.Exec(t.Context(), "cp", "/usr/lib/frr/bgpd", "-d", "-n", "-Z", "-S", "-f", config, "-i", pid, "--vty_socket", directory)
	must(t, err)
	t.Cleanup(func() {
		content, err := os.ReadFile(pid)
		must(t, err)
		_, err = cluster.Exec(context.WithoutCancel(t.Context()), "cp", "kill", strings.TrimSpace(string(content)))
		must(t, err)
	})
	return othersDaemon(directory)
}

// sessions waits for a session with each node and returns how many each has had.
func (d othersDaemon) sessions(t *testing.T) map[string]int {
	t.Helper()
	had := map[string]int{}
	eventually(t, setUp, func(ctx context.Context) error {
		out, err := cluster.Exec(ctx, "cp", "vtysh", "--vty_socket", string(d), "-c", "show bgp neighbors json")
		if err != nil {
			return err
		}
		var neighbors map[string]struct {
			State string `json:"bgpState"`
			Had   int    `json:"connectionsEstablished"`
		}
		if err := json.Unmarshal(out, &neighbors); err != nil {
			return err
		}
		for i := 1; i <= 3; i++ {
			node := harness.NodeAddress(i, netip.IPv4Unspecified()).String()
			if neighbors[node].State != "Established" {
				return fmt.Errorf("router of another configuration: session with %s is %q", node, neighbors[node].State)
			}
			had[node] = neighbors[node].Had
		}
		return nil
	})
	return had
}
