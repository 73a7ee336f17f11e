// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const chaosServices = 60

// TestChaos creates, changes and deletes Services and endpoints at random, for a minute or MILLRACE_CHAOS.
// Meanwhile the agent, its EndpointSlice relay and both operators, without leader election, are killed
// repeatedly; agent and relay are also stopped, the agent terminated, and the API server paused for seconds.
// Afterwards no address has two owners, maps and router match those of an agent without history, and no
// component writes. With go test -race all programs use the race detector.
func TestChaos(t *testing.T) {
	duration, seed := controlplane.ChaosFor(t, time.Minute), rand.Uint64()
	t.Logf("seed %d", seed)
	races := t.TempDir()
	t.Setenv("GORACE", "log_path="+filepath.Join(races, "race"))
	// An agent without history retains no endpoint.
	t.Setenv(agentRetention, "0s")
	w := newWorld(t)
	w.room, w.stateDir = 4*chaosServices, mountState(t)
	w.install()
	w.installOperator()
	c := &chaos{world: w, program: w.buildOperator(asTheTest...)}
	c.operators = [2]*exec.Cmd{w.startOperator(c.program), w.startOperator(c.program)}
	w.populateNodes()
	w.installRelays()
	c.relay, c.agent = w.startRelay(), w.start()

	ctx, end := context.WithTimeout(t.Context(), duration)
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	const users = 4
	for user := range users {
		group.Go(func() error { return c.use(ctx, user, users, rand.New(rand.NewPCG(seed, uint64(user)))) })
	}
	c.kill(ctx, rand.New(rand.NewPCG(seed, users)))
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d changes, %v", c.changes, c.done)
	c.rest()
	c.forgetsNothing()
	if found, _ := filepath.Glob(filepath.Join(races, "race.*")); len(found) > 0 {
		text, _ := os.ReadFile(found[0])
		t.Errorf("%d processes reported a data race: %s", len(found), text)
	}
}

type chaos struct {
	*world
	program   string
	operators [2]*exec.Cmd
	agent     *agent
	relay     *exec.Cmd
	done      map[string]int

	mutex   sync.Mutex
	changes int
}

func (c *chaos) use(ctx context.Context, user, users int, random *rand.Rand) error {
	for ctx.Err() == nil {
		n := 1 + user + users*random.IntN(chaosServices/users)
		var err error
		switch random.IntN(6) {
		case 0, 1:
			err = c.createService(ctx, n)
		case 2:
			err = c.changeService(ctx, n, random)
		case 3, 4:
			err = c.changeEndpoints(ctx, n, random)
		case 5:
			err = c.deleteService(ctx, n)
		}
		// A request to a paused API server may have been executed.
		known := err != nil && !controlplane.IsUnanswered(err)
		if known && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("service %d: %w", n, err)
		}
		if err == nil {
			c.mutex.Lock()
			c.changes++
			c.mutex.Unlock()
		}
		controlplane.Wait(ctx, time.Duration(random.IntN(60))*time.Millisecond)
	}
	return nil
}

func serviceKey(n int) client.ObjectKey {
	return client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("service-%03d", n)}
}

func (c *chaos) changeService(ctx context.Context, n int, random *rand.Rand) error {
	service := &corev1.Service{}
	if err := c.client.Get(ctx, serviceKey(n), service); err != nil {
		return err
	}
	service.Spec.Ports = service.Spec.Ports[:1]
	switch random.IntN(4) {
	case 0:
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	case 1:
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		service.Spec.HealthCheckNodePort = 0
	case 2:
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "more", Port: int32(81 + random.IntN(3)), Protocol: corev1.ProtocolTCP})
	case 3:
		service.Spec.LoadBalancerSourceRanges = []string{fmt.Sprintf("198.51.%d.0/24", 100+random.IntN(5))}
	}
	return c.client.Update(ctx, service)
}

func (c *chaos) changeEndpoints(ctx context.Context, n int, random *rand.Rand) error {
	slice := &discoveryv1.EndpointSlice{}
	if err := c.client.Get(ctx, serviceKey(n), slice); err != nil {
		return err
	}
	slice.Endpoints = nil
	for i := range random.IntN(5) {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{netip.AddrFrom4([4]byte{198, 19, byte(n), byte(8*random.IntN(4) + i)}).String()},
			NodeName:  pointer([]string{thisNode, otherNode}[random.IntN(2)]),
		})
	}
	return c.client.Update(ctx, slice)
}

func (c *chaos) deleteService(ctx context.Context, n int) error {
	key := serviceKey(n)
	meta := metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
	if err := c.client.Delete(ctx, &corev1.Service{ObjectMeta: meta}); err != nil {
		return err
	}
	return c.client.Delete(ctx, &discoveryv1.EndpointSlice{ObjectMeta: meta})
}

// kill kills and stops programs until ctx ends, and leaves all running.
func (c *chaos) kill(ctx context.Context, random *rand.Rand) {
	c.t.Helper()
	c.done = map[string]int{}
	must := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	for ctx.Err() == nil {
		controlplane.Wait(ctx, time.Duration(500+random.IntN(4000))*time.Millisecond)
		switch random.IntN(7) {
		case 0:
			_ = c.agent.end(syscall.SIGKILL)
			c.agent = c.start()
			c.done["agents killed"]++
		case 1:
			// The signal terminates a process that does not handle it yet.
			c.Await(time.Minute, "the agent has begun", answers)
			must(c.agent.end(syscall.SIGTERM))
			c.agent = c.start()
			c.done["agents ended"]++
		case 2:
			must(c.agent.cmd.Process.Signal(syscall.SIGSTOP))
			controlplane.Wait(ctx, time.Duration(random.IntN(3000))*time.Millisecond)
			must(c.agent.cmd.Process.Signal(syscall.SIGCONT))
			c.done["agents stopped"]++
		case 3:
			must(c.api.Pause())
			controlplane.Wait(ctx, time.Duration(random.IntN(8000))*time.Millisecond)
			must(c.api.Resume())
			c.done["API servers stopped"]++
		case 4:
			one := &c.operators[random.IntN(len(c.operators))]
			must((*one).Process.Kill())
			_ = (*one).Wait()
			*one = c.startOperator(c.program)
			c.done["operators killed"]++
		case 5:
			must(c.relay.Process.Kill())
			_ = c.relay.Wait()
			controlplane.Wait(ctx, time.Duration(random.IntN(3000))*time.Millisecond)
			c.relay = c.startRelay()
			c.done["relays killed"]++
		case 6:
			// Agents wait six seconds for a relay.
			must(c.relay.Process.Signal(syscall.SIGSTOP))
			controlplane.Wait(ctx, time.Duration(random.IntN(15_000))*time.Millisecond)
			must(c.relay.Process.Signal(syscall.SIGCONT))
			c.done["relays stopped"]++
		}
	}
}

// rest waits until no component writes, and checks that no address has two owners.
func (c *chaos) rest() {
	c.t.Helper()
	c.api.AwaitIdle(c.t, 3*time.Minute, 10*time.Second, func(write controlplane.Write) bool {
		return write.User == agentUser || write.User == operatorUser
	}, func(ctx context.Context) error { return controlplane.Owners(ctx, c.client) })
}

// forgetsNothing checks that the maps equal those of an agent without history.
func (c *chaos) forgetsNothing() {
	c.t.Helper()
	held, routes := c.held(), c.KernelRoutes()
	if err := c.agent.end(syscall.SIGTERM); err != nil {
		c.t.Errorf("the agent exited: %v", err)
	}
	if err := Cleanup(c.t.Context(), c.pinRoot, c.stateDir, logr.Discard()); err != nil {
		c.t.Fatal(err)
	}
	c.agent = c.start()
	var fresh, freshRoutes map[string]string
	same := func() bool {
		freshRoutes = c.KernelRoutes()
		if _, err := os.Stat(filepath.Join(c.pinRoot, "maps")); err != nil || !ready() {
			return false
		}
		fresh = c.held()
		return maps.Equal(held, fresh) && maps.Equal(routes, freshRoutes)
	}
	for deadline := time.Now().Add(30 * time.Second); !same(); {
		if time.Now().After(deadline) {
			c.t.Fatalf("map entries differ from those of a fresh agent: %s\nroutes: %s", differences(held, fresh), differences(routes, freshRoutes))
		}
		controlplane.Wait(c.t.Context(), 200*time.Millisecond)
	}
	c.t.Logf("%d entries and %d routes equal those of a fresh agent", len(held), len(routes))
}

// held returns the contents of the maps without values that depend on history.
func (c *chaos) held() map[string]string {
	c.t.Helper()
	state, err := dataplane.Read(c.pinRoot)
	if err != nil {
		c.t.Fatal(err)
	}
	held := map[string]string{"self": fmt.Sprint(state.Self), "endpoints": fmt.Sprint(len(state.Endpoints)), "endpoint tables": fmt.Sprint(len(state.EndpointTables))}
	for id, node := range state.Nodes {
		held[fmt.Sprint("node ", id)] = fmt.Sprint(node)
	}
	for vip := range state.VIPs {
		held["vip "+vip.String()] = ""
	}
	sets := map[forwarding.SourceSet][]string{}
	for source := range state.SourceRanges {
		sets[source.Set] = append(sets[source.Set], source.Prefix.String())
	}
	for key, frontend := range state.Frontends {
		nodes, endpoints := map[forwarding.NodeID]int{}, map[netip.AddrPort]int{}
		if table := state.NodeTables[frontend.Table]; table != nil {
			for _, row := range *table {
				nodes[row.Primary]++
			}
		}
		if table := state.EndpointTables[frontend.Endpoints]; table != nil {
			for _, id := range table {
				endpoints[netip.AddrPortFrom(state.Endpoints[id].Address, state.Endpoints[id].Port)]++
			}
		}
		slices.Sort(sets[frontend.Ranges])
		held[fmt.Sprint("frontend ", key)] = fmt.Sprintf("nodes %v, endpoints %v, local %t, refuses %t, affinity %d, ranges %v",
			slices.Sorted(maps.Keys(nodes)), slices.SortedFunc(maps.Keys(endpoints), netip.AddrPort.Compare),
			frontend.Local, frontend.Refuses, frontend.Affinity, sets[frontend.Ranges])
	}
	return held
}

func differences(a, b map[string]string) string {
	var lines []string
	for key, value := range a {
		if other, found := b[key]; !found || other != value {
			lines = append(lines, fmt.Sprintf("%s: %s | %q", key, value, other))
		}
	}
	for key, value := range b {
		if _, found := a[key]; !found {
			lines = append(lines, fmt.Sprintf("%s: none | %s", key, value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
