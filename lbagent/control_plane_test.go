// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
	"github.com/millrace-lb/millrace/lbagent/internal/reconcile"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
	"github.com/millrace-lb/millrace/test/figures"
	"github.com/millrace-lb/millrace/test/isolated"
)

const (
	nodesVariable    = "MILLRACE_NODES"
	servicesVariable = "MILLRACE_SERVICES"
	movesVariable    = "MILLRACE_MOVES"
	podsOfService    = 10
	perSecond        = 100
	// One in zonalOf Services is zonal, one in restrictedOf has source ranges.
	zonalOf, restrictedOf = 20, 10
	zonesOfNodes          = 3
)

// TestControlPlane measures an agent in a generated cluster: passes, planner and maps in the kernel, without
// API server and router. Each Service has two families, two ports and ten pods; some have zones, some source
// ranges. By default the cluster is small and only correctness is checked; make bench-control is for figures.
func TestControlPlane(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	c := newGenerated(t, sizeOf(t, nodesVariable, 20), sizeOf(t, servicesVariable, 50))
	c.moving = sizeOf(t, movesVariable, 20)
	report := &figures.Report{}
	c.start(report)
	c.memory(report)
	c.moves(report)
	c.rate(report)
	c.deadNode(report)
	c.restart(report)
	shares(report)
	report.Print(t, fmt.Sprintf("Agent: %d nodes, %d Services", c.nodes, c.services))
}

func sizeOf(t *testing.T, variable string, otherwise int) int {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	size, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return size
}

type generated struct {
	t               *testing.T
	nodes, services int
	moving          int
	config          dataplane.Config
	plane           *dataplane.Dataplane
	loop            *loop
	random          *rand.Rand

	mutex   sync.Mutex
	objects *model.Snapshot
	// given is true once a pass uses the list of EndpointSlices, which is copied before the next change, as
	// in lbagent/internal/source.
	given  bool
	slices [][2]int
}

func newGenerated(t *testing.T, nodes, services int) *generated {
	directory := t.TempDir()
	if err := unix.Mount("bpf", directory, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	// Ports and families of a Service share a node table of an eighth of the full size; the capacity is twice
	// that. The maps of local endpoints have twice the required size, or the default.
	frontends, tables := 4*services+64, services/4+64
	agent, own := DefaultConfig(), 2*4*services*podsOfService/nodes
	c := &generated{t: t, nodes: nodes, services: services, random: rand.New(rand.NewPCG(1, 2)), config: dataplane.Config{
		PinRoot: filepath.Join(directory, "millrace"), Connections: 1 << 16,
		Limits: forwarding.Limits{
			Frontends: frontends, NodeTables: tables, EndpointTables: min(max(own, agent.MaxEndpointTables), frontends),
			Endpoints: max(own, agent.MaxEndpoints), VIPs: 2*services + 64, SourceRanges: 1024,
		},
	}}
	t.Cleanup(func() {
		if err := errors.Join(c.plane.Close(), unix.Unmount(directory, 0)); err != nil {
			t.Error(err)
		}
	})
	c.generate()
	return c
}

func (c *generated) generate() {
	c.objects = cluster()
	for i, node := range c.objects.LBNodes {
		node.Spec.Zone = zoneOfNode(i + 1)
	}
	template := c.objects.LBNodes[1]
	for id := 3; id <= c.nodes; id++ {
		node := template.DeepCopy()
		node.Name, node.UID, node.Spec.ID = c.nodeName(id), types.UID(c.nodeName(id)), int32(id)
		node.Spec.Zone = zoneOfNode(id)
		node.Spec.Addresses = []string{
			netip.AddrFrom4([4]byte{203, 0, byte(112 + id>>8), byte(id)}).String(),
			netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(id >> 8), 15: byte(id)}).String(),
		}
		c.objects.LBNodes = append(c.objects.LBNodes, node)
	}
	for n := range c.services {
		c.addService(n)
	}
}

func (c *generated) nodeName(id int) string {
	switch id {
	case 1:
		return thisNode
	case 2:
		return otherNode
	}
	return fmt.Sprintf("generated-%d", id)
}

func zoneOfNode(id int) string { return fmt.Sprintf("zone-%d", id%zonesOfNodes) }

func isZonal(service int) bool { return service%zonalOf == 0 }

func (c *generated) place(endpoint *discoveryv1.Endpoint, service, id int) {
	endpoint.NodeName = pointer(c.nodeName(id))
	if isZonal(service) {
		endpoint.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zoneOfNode(id)}}}
	}
}

func (c *generated) address(n int, ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xff, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{198, 51, byte(n >> 8), byte(n)})
}

func (c *generated) addService(n int) {
	name := fmt.Sprintf("generated-%d", n)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: pointer(millracev1beta1.Class),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "https", Port: 443, Protocol: corev1.ProtocolTCP},
			},
		},
	}
	if isZonal(n) {
		service.Spec.TrafficDistribution = pointer(corev1.ServiceTrafficDistributionPreferClose)
	}
	if n%restrictedOf == 1 {
		service.Spec.LoadBalancerSourceRanges = []string{fmt.Sprintf("203.0.113.%d/32", n/restrictedOf%256), "2001:db8::/64"}
	}
	c.objects.Services = append(c.objects.Services, service)
	var places [2]int
	for i, family := range service.Spec.IPFamilies {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name + string(family), UID: types.UID(name + string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: discoveryv1.AddressType(family),
			Ports: []discoveryv1.EndpointPort{
				{Name: pointer("http"), Port: pointer(int32(8080)), Protocol: pointer(corev1.ProtocolTCP)},
				{Name: pointer("https"), Port: pointer(int32(8443)), Protocol: pointer(corev1.ProtocolTCP)},
			},
		}
		random := rand.New(rand.NewPCG(uint64(n), 3))
		for pod := range podsOfService {
			number := n*podsOfService + pod
			address := netip.AddrFrom4([4]byte{198, 18 + byte(number>>16), byte(number >> 8), byte(number)})
			if i == 1 {
				address = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0x18, 13: byte(number >> 16), 14: byte(number >> 8), 15: byte(number)})
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address.String()}})
			c.place(&slice.Endpoints[pod], n, 1+random.IntN(c.nodes))
		}
		places[i] = len(c.objects.EndpointSlices)
		c.objects.EndpointSlices = append(c.objects.EndpointSlices, slice)
		vip := c.address(n, i == 1)
		c.objects.VIPs = append(c.objects.VIPs, &millracev1beta1.VIP{
			ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(vip), UID: types.UID(vip.String())},
			Spec: millracev1beta1.VIPSpec{
				Address: vip.String(), Claims: []millracev1beta1.VIPClaim{{Namespace: "default", Name: name}},
			},
		})
	}
	c.slices = append(c.slices, places)
}

func (c *generated) snapshot() *model.Snapshot {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.given = true
	objects := *c.objects
	return &objects
}

func (c *generated) movePod() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.given {
		c.objects.EndpointSlices, c.given = slices.Clone(c.objects.EndpointSlices), false
	}
	node, service := 1+c.random.IntN(c.nodes), c.random.IntN(len(c.slices))
	for _, place := range c.slices[service] {
		slice := c.objects.EndpointSlices[place].DeepCopy()
		c.place(&slice.Endpoints[0], service, node)
		c.objects.EndpointSlices[place] = slice
	}
}

func (c *generated) open() {
	var err error
	if c.plane, err = dataplane.Open(c.config); err != nil {
		c.t.Fatal(err)
	}
	have, err := c.plane.Dump()
	if err != nil {
		c.t.Fatal(err)
	}
	n := newNode(c.t)
	c.loop = newLoop(n, c.objects)
	c.loop.assembler.Objects, c.loop.routes.Speaker = c.snapshot, anyRouter{speakerOf{n}}
	c.loop.assembler.Guard = removalguard.New(time.Minute, nil)
	config := c.loop.maps.Config
	config.Plane, config.Limits, config.WithdrawDelay = c.plane, c.config.Limits, time.Second
	c.loop.maps = reconcile.New(have, plan.NewPlanner(have), config)
	c.loop.routes = routes.New(have, c.loop.routes.Config)
}

func (c *generated) pass() time.Duration {
	begin := time.Now()
	if _, err := c.loop.pass(begin); err != nil {
		c.t.Fatal(err)
	}
	if problems := c.loop.observation.Problems; len(problems) > 0 {
		c.t.Fatalf("%d problems, first: %v", len(problems), problems[0])
	}
	return time.Since(begin)
}

func (c *generated) start(report *figures.Report) {
	c.open()
	report.Add("first plan, with all writes", c.pass().Seconds(), 5, "s")
	// From here on routes are computed, as for a router that does not respond.
	router := bgp.New(bgp.Config{})
	c.t.Cleanup(func() {
		if err := router.Set(bgp.Want{}); err != nil {
			c.t.Error(err)
		}
	})
	c.loop.routes.Speaker = router
	c.pass()
	if programmed := len(c.loop.maps.Have().Frontends); programmed != 4*c.services {
		c.t.Fatalf("%d frontends in the maps, want %d", programmed, 4*c.services)
	}
}

func (c *generated) memory(report *figures.Report) {
	runtime.GC()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	report.Add("heap, objects included", float64(heap.HeapAlloc)/(1<<20), 256, "MiB")
	var bytes uint64
	pins, err := filepath.Glob(filepath.Join(c.config.PinRoot, "maps", "*"))
	if err != nil || len(pins) == 0 {
		c.t.Fatalf("no pinned maps: %v", err)
	}
	for _, pin := range pins {
		bytes += mapMemory(c.t, pin)
	}
	report.Add("maps in the kernel", float64(bytes)/(1<<20), 512, "MiB")
}

func mapMemory(t *testing.T, pin string) uint64 {
	pinned, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		t.Fatal(err)
	}
	// An empty trie has none.
	bytes, _ := info.Memlock()
	return bytes
}

// moves measures the pass after one pod moved, at rest and with a pending removal.
func (c *generated) moves(report *figures.Report) {
	c.pass()
	report.Add("one pod moves", c.oneMove(), 5, "ms")
	c.mutex.Lock()
	c.objects.Services = slices.Clone(c.objects.Services)
	removed := c.objects.Services[c.services/2]
	without := removed.DeepCopy()
	without.Spec.Ports = without.Spec.Ports[:1]
	c.objects.Services[c.services/2] = without
	c.mutex.Unlock()
	c.loop.maps.WithdrawDelay = time.Hour
	c.pass()
	if len(c.loop.maps.Waiting()) == 0 {
		c.t.Fatal("no removal is pending: the test measures nothing")
	}
	report.Add("one pod moves while a removal waits", c.oneMove(), 5, "ms")
	clear(c.loop.maps.Waiting())
	c.loop.maps.WithdrawDelay = 0
	c.pass()
	c.loop.maps.WithdrawDelay = time.Second
	if c.pass(); len(c.loop.maps.Waiting()) > 0 {
		c.t.Fatalf("%d removals are still pending", len(c.loop.maps.Waiting()))
	}
}

func (c *generated) oneMove() float64 {
	var took []time.Duration
	for range 20 {
		c.movePod()
		took = append(took, c.pass())
	}
	slices.Sort(took)
	return milliseconds(took[len(took)/2])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// rate moves pods at a rate while the agent runs, and measures each move until the end of its pass, with the
// informers' delay.
func (c *generated) rate(report *figures.Report) {
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	events := make(chan struct{}, 1)
	var waiting, taken []time.Time
	var latencies []time.Duration
	c.loop.assembler.Objects = func() *model.Snapshot {
		c.mutex.Lock()
		taken, waiting = append(taken, waiting...), nil
		c.mutex.Unlock()
		return c.snapshot()
	}
	c.loop.status = told(func(status.Observation) {
		for _, moved := range taken {
			latencies = append(latencies, time.Since(moved))
		}
		taken = nil
	})
	done := make(chan error, 1)
	go func() { done <- c.loop.run(ctx, events, nil, nil) }()
	before, begin := processorTime(c.t), time.Now()
	ticker := time.NewTicker(time.Second / perSecond)
	defer ticker.Stop()
	var settled <-chan time.Time
	for moved := 0; moved < c.moving; {
		select {
		case <-ticker.C:
			c.movePod()
			moved++
			c.mutex.Lock()
			waiting = append(waiting, time.Now())
			c.mutex.Unlock()
			if settled == nil {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			notify.Signal(events)
		}
	}
	cores := (processorTime(c.t) - before).Seconds() / time.Since(begin).Seconds()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		c.t.Fatal(err)
	}
	c.loop.assembler.Objects, c.loop.status = c.snapshot, told(func(status.Observation) {})
	if len(latencies) < c.moving/2 {
		c.t.Fatalf("%d of %d changes were observed", len(latencies), c.moving)
	}
	slices.Sort(latencies)
	report.Add("100 changes a second: 99th percentile to the maps", milliseconds(latencies[len(latencies)*99/100]), 50, "ms")
	report.Add("100 changes a second: processors", cores, 0.1, "cores")
}

type told func(status.Observation)

func (t told) Set(observation status.Observation) { t(observation) }

// settle is the informers' coalescing delay (lbagent/internal/source).
const settle = 40 * time.Millisecond

func processorTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// deadNode measures marking a node as down, and the pass that removes it from all rows.
func (c *generated) deadNode(report *figures.Report) {
	c.pass()
	dead := forwarding.NodeID(c.nodes)
	begin := time.Now()
	if err := c.plane.SetDown(map[forwarding.NodeID]bool{dead: true}); err != nil {
		c.t.Fatal(err)
	}
	report.Add("a node is down: until no packet goes there", milliseconds(time.Since(begin)), 5, "ms")
	c.loop.nodeHealth = watchBy(&fakeProber{verdict: membership.Verdict{Down: map[forwarding.NodeID]time.Time{dead: begin}}})
	report.Add("a node is down: until all rows are written", c.pass().Seconds(), 1, "s")
	for _, table := range c.loop.maps.Have().NodeTables {
		for _, row := range *table {
			if row.Primary == dead {
				c.t.Fatal("the dead node still owns rows")
			}
		}
	}
}

func (c *generated) restart(report *figures.Report) {
	if err := c.plane.Close(); err != nil {
		c.t.Fatal(err)
	}
	begin := time.Now()
	c.open()
	if kind := c.plane.Adoption().Kind; kind != dataplane.Adopted {
		c.t.Fatalf("Adoption = %s, want %s", kind, dataplane.Adopted)
	}
	c.pass()
	report.Add("a restart on pinned maps", time.Since(begin).Seconds(), 3, "s")
}

func shares(report *figures.Report) {
	report.Add("node ids", forwarding.MaxNodeID, -8000, "")
	for _, pods := range []int{100, 1000, 4000} {
		weights := map[forwarding.NodeID]uint32{}
		for id := range pods {
			weights[forwarding.NodeID(id+1)] = 1
		}
		size := plan.SizeFor(&model.Frontend{Weights: weights})
		rows := map[forwarding.NodeID]int{}
		for _, owner := range table.NewRendezvous().Primaries(weights, size) {
			rows[owner]++
		}
		mean := float64(size.Rows) / float64(pods)
		var variance float64
		idle, busiest := 0, 0
		for id := range weights {
			variance += math.Pow(float64(rows[id])-mean, 2) / float64(pods)
			busiest = max(busiest, rows[id])
			idle += cmp.Compare(1, min(rows[id], 1))
		}
		report.Add(fmt.Sprintf("%d pods of a Service: standard deviation of their shares", pods), 100*math.Sqrt(variance)/mean, 5, "%")
		report.Add(fmt.Sprintf("%d pods of a Service: share of the busiest", pods), float64(busiest)/mean, 1.2, "×")
		report.Add(fmt.Sprintf("%d pods of a Service: idle", pods), float64(idle), 0, "")
	}
}
