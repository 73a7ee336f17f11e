// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// FuzzBuild runs Build with two arbitrary objects of each kind. Use -fuzzminimizetime=10x to spend most of the
// time on new inputs.
func FuzzBuild(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		s := readSnapshot(f, archive.Files[0].Data)
		f.Add(encodeFirst(s.Services), encodeFirst(s.EndpointSlices), encodeFirst(s.VIPs), encodeFirst(s.LBNodes),
			encodeFirst(s.Peers), encodeFirst(s.Advertisements), encodeFirst(s.Routes))
	}
	f.Fuzz(func(t *testing.T, service, slice, vip, node, peer, advertisement, route []byte) {
		s := &Snapshot{NodeName: testNode, Node: &corev1.Node{}}
		decodeInto(&s.Services, service)
		decodeInto(&s.EndpointSlices, slice)
		decodeInto(&s.VIPs, vip)
		decodeInto(&s.LBNodes, node)
		decodeInto(&s.Peers, peer)
		decodeInto(&s.Advertisements, advertisement)
		decodeInto(&s.Routes, route)
		checkModel(t, s, Build(s))
	})
}

func encodeFirst[T any](objects []*T) []byte {
	if len(objects) == 0 {
		return nil
	}
	data, err := yaml.Marshal(objects[0])
	if err != nil {
		panic(err)
	}
	return data
}

// decodeInto adds the object under two names, because many faults are conflicts, and a nil object.
func decodeInto[T any, P interface {
	*T
	metav1.Object
}](objects *[]P, data []byte) {
	object, twin := P(new(T)), P(new(T))
	if yaml.Unmarshal(data, object) == nil && yaml.Unmarshal(data, twin) == nil {
		twin.SetName(object.GetName() + "-twin")
		*objects = append(*objects, object, twin, nil)
	}
}

// TestModelHolds builds models of many related objects, some of them invalid.
func TestModelHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot(t)
		m := Build(s)
		checkModel(t, s, m)
		shuffle(s, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)))
		other := Build(s)
		if !reflect.DeepEqual(m, other) {
			t.Fatalf("a different order of the objects returns\n%s\nwant\n%s", dump(other), dump(m))
		}
	})
}

func TestIncrementalBuild(t *testing.T) {
	kept := 0
	rapid.Check(t, func(t *rapid.T) {
		var builder Builder
		s := genSnapshot(t)
		var before *Model
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			m, changes := builder.Build(s)
			if whole := Build(s); !reflect.DeepEqual(m, whole) {
				t.Fatalf("the Builder returns\n%s\nwant\n%s", dump(m), dump(whole))
			}
			if changes != nil {
				checkChanges(t, changes, before, m)
				kept += len(m.VIPs) - len(changes.VIPs)
			}
			before = m
			next, fresh := *s, genSnapshot(t)
			next.Node = pick(t, "node", s.Node, s.Node, fresh.Node)
			next.LBNodes = genMix(t, s.LBNodes, fresh.LBNodes)
			next.Services = genMix(t, s.Services, fresh.Services)
			next.EndpointSlices = genMix(t, s.EndpointSlices, fresh.EndpointSlices)
			next.VIPs = genMix(t, s.VIPs, fresh.VIPs)
			next.Routes = genMix(t, s.Routes, fresh.Routes)
			next.Pools = genMix(t, s.Pools, fresh.Pools)
			next.Peers = genMix(t, s.Peers, fresh.Peers)
			next.Advertisements = genMix(t, s.Advertisements, fresh.Advertisements)
			if rapid.Bool().Draw(t, "a node goes down") {
				next.Down = map[forwarding.NodeID]bool{2: rapid.Bool().Draw(t, "down")}
			}
			s = &next
			next.DynamicNeighbors = pick(t, "dynamic neighbors", s.DynamicNeighbors, nil, []netip.Addr{netip.MustParseAddr("203.0.113.1")})
			if rapid.Bool().Draw(t, "objects leave their places") {
				shuffle(s, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)))
			}
		}
	})
	if kept <= 0 {
		t.Error("every VIP was rebuilt in every step")
	}
}

// TestBuilderFollowsNodes changes only nodes of mostly valid snapshots. VIPs without endpoints on them must not
// be parsed again.
func TestBuilderFollowsNodes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	archives := make([][]byte, len(files))
	for i, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = archive.Files[0].Data
	}
	changed, kept := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		s := readSnapshot(t, archives[rapid.IntRange(0, len(files)-1).Draw(r, "fixture")])
		var builder Builder
		before, _ := builder.Build(s)
		for range rapid.IntRange(1, 6).Draw(r, "steps") {
			next := *s
			s = &next
			s.LBNodes, s.Down = slices.Clone(s.LBNodes), maps.Clone(s.Down)
			genOtherNode(r, s)
			m, changes := builder.Build(s)
			if whole := Build(s); !reflect.DeepEqual(m, whole) {
				r.Fatalf("the Builder returns\n%s\nwant\n%s", dump(m), dump(whole))
			}
			if changes != nil {
				checkChanges(r, changes, before, m)
				changed, kept = changed+len(changes.VIPs), kept+len(m.VIPs)-len(changes.VIPs)
			}
			before = m
		}
	})
	t.Logf("%d VIPs were rebuilt, %d were reused", changed, kept)
	if changed == 0 || kept <= 0 {
		t.Errorf("%d VIPs were rebuilt, %d were reused", changed, kept)
	}
}
