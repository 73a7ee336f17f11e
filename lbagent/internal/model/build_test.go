// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

var update = flag.Bool("update", false, "write what Build returns into testdata")

// testNode is the agent's node in testdata.
const testNode = "node1"

// TestBuild runs testdata/*.txtar: input objects.yaml, expected output model.txt.
func TestBuild(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(archive.Files) != 2 || archive.Files[0].Name != "objects.yaml" || archive.Files[1].Name != "model.txt" {
				t.Fatalf("%s does not contain objects.yaml and model.txt", file)
			}
			snapshot := readSnapshot(t, archive.Files[0].Data)
			got := dump(Build(snapshot))
			if *update {
				archive.Files[1].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want := string(archive.Files[1].Data); got != want {
				t.Errorf("model:\n%s\nwant:\n%s", got, want)
			}
			// The result does not depend on the order of objects.
			for seed := range uint64(20) {
				shuffle(snapshot, rand.New(rand.NewPCG(seed, 0)))
				if other := dump(Build(snapshot)); other != got {
					t.Fatalf("a different order of the objects returns\n%s\nwant\n%s", other, got)
				}
			}
		})
	}
}

func readSnapshot(t testing.TB, data []byte) *Snapshot {
	t.Helper()
	snapshot := &Snapshot{NodeName: testNode}
	for _, document := range bytes.Split(data, []byte("---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "":
		case "Node":
			snapshot.Node = decode[corev1.Node](t, document)
		case "Service":
			snapshot.Services = append(snapshot.Services, decode[corev1.Service](t, document))
		case "EndpointSlice":
			snapshot.EndpointSlices = append(snapshot.EndpointSlices, decode[discoveryv1.EndpointSlice](t, document))
		case "VIP":
			snapshot.VIPs = append(snapshot.VIPs, decode[millracev1beta1.VIP](t, document))
		case "VIPPool":
			snapshot.Pools = append(snapshot.Pools, decode[millracev1beta1.VIPPool](t, document))
		case "LBNode":
			snapshot.LBNodes = append(snapshot.LBNodes, decode[millracev1beta1.LBNode](t, document))
		case "LBPeer":
			snapshot.Peers = append(snapshot.Peers, decode[millracev1beta1.LBPeer](t, document))
		case "VIPRoute":
			snapshot.Routes = append(snapshot.Routes, decode[millracev1beta1.VIPRoute](t, document))
		case "VIPAdvertisement":
			snapshot.Advertisements = append(snapshot.Advertisements, decode[millracev1beta1.VIPAdvertisement](t, document))
		default:
			t.Fatalf("objects.yaml: unsupported kind %q", kind.Kind)
		}
	}
	return snapshot
}

func decode[T any](t testing.TB, document []byte) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	return object
}

func shuffle(s *Snapshot, random *rand.Rand) {
	mix := func(n int, swap func(i, j int)) { random.Shuffle(n, swap) }
	mix(len(s.Services), func(i, j int) { s.Services[i], s.Services[j] = s.Services[j], s.Services[i] })
	mix(len(s.EndpointSlices), func(i, j int) {
		s.EndpointSlices[i], s.EndpointSlices[j] = s.EndpointSlices[j], s.EndpointSlices[i]
	})
	mix(len(s.VIPs), func(i, j int) { s.VIPs[i], s.VIPs[j] = s.VIPs[j], s.VIPs[i] })
	mix(len(s.LBNodes), func(i, j int) { s.LBNodes[i], s.LBNodes[j] = s.LBNodes[j], s.LBNodes[i] })
	mix(len(s.Pools), func(i, j int) { s.Pools[i], s.Pools[j] = s.Pools[j], s.Pools[i] })
	mix(len(s.Peers), func(i, j int) { s.Peers[i], s.Peers[j] = s.Peers[j], s.Peers[i] })
	mix(len(s.Routes), func(i, j int) { s.Routes[i], s.Routes[j] = s.Routes[j], s.Routes[i] })
	mix(len(s.Advertisements), func(i, j int) {
		s.Advertisements[i], s.Advertisements[j] = s.Advertisements[j], s.Advertisements[i]
	})
}

func dump(m *Model) string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	line("self %d %s", m.Self.ID, joinAddresses(m.Self.IPv4, m.Self.IPv6))
	for _, node := range m.Nodes {
		zone := ""
		if node.Zone != 0 {
			zone = fmt.Sprintf(" zone %q", m.Zones[node.Zone])
		}
		line("node %d %s %s%s", node.ID, node.Name, joinAddresses(node.IPv4, node.IPv6), zone)
	}
	for _, vip := range m.VIPs {
		line("vip %s pool %q", vip.Address, vip.Pool)
		for _, service := range vip.Services {
			line("  service %s %v", service.Name, map[string]string(service.Labels))
		}
	}
	for _, prefix := range m.Pools {
		line("pool %s", prefix)
	}
	for _, frontend := range m.Frontends {
		dumpFrontend(line, frontend, m.Zones)
	}
	for _, peer := range m.Peers {
		line("peer %s %s AS%d from AS%d", peer.Name, netip.AddrPortFrom(peer.Address, peer.Port), peer.ASN, peer.LocalASN)
		line("  hold %s keepalive %s retry %s restart %s ttl %d ipv4 %t ipv6 %t", peer.HoldTime, peer.KeepaliveTime,
			peer.ConnectRetryTime, peer.RestartTime, peer.MultiHopTTL, peer.IPv4, peer.IPv6)
	}
	for _, advertisement := range m.Advertisements {
		dumpAdvertisement(line, m, &advertisement)
	}
	for _, problem := range m.Problems {
		object := strings.Trim(problem.Object.Namespace+"/"+problem.Object.Name, "/")
		line("problem %s %s %s: %s", problem.Object.Kind, object, problem.Reason, problem.Message)
	}
	return out.String()
}

func dumpFrontend(line func(string, ...any), frontend *Frontend, zones []string) {
	policy := "Cluster"
	if frontend.Local {
		policy = "Local"
	}
	if frontend.Shared {
		policy += ", shared"
	}
	if frontend.OnlyEstablished {
		policy += ", living"
	}
	line("frontend %s %s %q %s %v", frontend.Key, frontend.Service, frontend.PortName, policy, frontend.Weights)
	for zone, weights := range frontend.Zones {
		if weights != nil {
			line("  zone %q %v", zones[zone], weights)
		}
	}
	if frontend.Affinity > 0 {
		line("  affinity %ds", frontend.Affinity)
	}
	if frontend.Restricted {
		line("  admits %v", frontend.Sources)
	}
	state := "usable"
	if frontend.Terminating {
		state = "usable, terminating"
	}
	list := func(state string, endpoints []forwarding.Endpoint, shares []uint32) {
		for i, endpoint := range endpoints {
			weight := ""
			if shares != nil {
				weight = fmt.Sprintf(" weight %d", shares[i])
			}
			line("  %s %s%s", netip.AddrPortFrom(endpoint.Address, endpoint.Port), state, weight)
		}
	}
	list(state, frontend.Endpoints, frontend.Shares)
	list("draining", frontend.Draining, nil)
	if frontend.Refused > 0 {
		line("  refused weight %d", frontend.Refused)
	}
}

func dumpAdvertisement(line func(string, ...any), m *Model, a *Advertisement) {
	line("advertisement %s pools %v peers %v", a.Name, a.Pools, a.Peers)
	communities := make([]string, 0, len(a.Communities))
	for _, community := range a.Communities {
		communities = append(communities, fmt.Sprintf("%d:%d", community>>16, community&0xffff))
	}
	preference := "none"
	if a.LocalPreference != nil {
		preference = fmt.Sprint(*a.LocalPreference)
	}
	line("  communities %v large %v local preference %s", communities, a.LargeCommunities, preference)
	for _, vip := range m.VIPs {
		for _, service := range vip.Services {
			if a.Services != nil {
				line("  selects %s: %t", service.Name, a.Services.Matches(service.Labels))
			}
		}
	}
}

func joinAddresses(addresses ...netip.Addr) string {
	addresses = slices.DeleteFunc(addresses, func(address netip.Addr) bool { return !address.IsValid() })
	texts := make([]string, 0, len(addresses))
	for _, address := range addresses {
		texts = append(texts, address.String())
	}
	return strings.Join(texts, " ")
}
