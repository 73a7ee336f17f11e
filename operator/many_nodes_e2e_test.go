// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/figures"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// nodesVariable sets the number of nodes of TestManyNodes.
const nodesVariable = "MILLRACE_NODES"

// TestManyNodes measures the operator with many nodes that join and report together, as after an upgrade.
// By default only the result with few nodes is verified; make bench-control takes the figures.
func TestManyNodes(t *testing.T) {
	c := newManyNodes(t)
	c.joins(t)
	c.reports(t)
	c.losesRouter(t)
	c.serves(t)
	c.restarts(t)
	c.report.Print(t, fmt.Sprintf("Operator: %d nodes", c.nodes))
}

type manyNodes struct {
	*environment
	nodes    int
	operator *instance
	keys     tunnelkey.Ring
	report   *figures.Report
}

func newManyNodes(t *testing.T) *manyNodes {
	c := &manyNodes{nodes: 40, environment: newEnvironment(t), report: &figures.Report{}}
	if text := os.Getenv(nodesVariable); text != "" {
		var err error
		c.nodes, err = strconv.Atoi(text)
		must(t, err)
	}
	c.pool(t, "main", nil, "198.18.0.0/16")
	must(t, c.client.Create(t.Context(), &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}))
	for _, name := range []string{"router1", "router2"} {
		must(t, c.client.Create(t.Context(), &millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "198.51.100.25" + name[len("router"):]}, PeerASN: 64512, LocalASN: 64513},
		}))
	}
	c.operator = c.run(t)
	return c
}

func (c *manyNodes) atOnce(t *testing.T, do func(ctx context.Context, number int) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	for number := range c.nodes {
		group.Go(func() error { return do(ctx, number) })
	}
	must(t, group.Wait())
}

func nodeName(number int) string { return fmt.Sprintf("node%05d", number) }

func (c *manyNodes) joins(t *testing.T) {
	before, began := c.operatorWrites(t), time.Now()
	c.atOnce(t, func(ctx context.Context, number int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(number)}}
		if err := c.client.Create(ctx, node); err != nil {
			return err
		}
		address := netip.AddrFrom4([4]byte{203, 0, byte(64 + number>>8), byte(number)})
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
		return c.client.Status().Update(ctx, node)
	})
	created := time.Since(began)
	ids := map[int32]bool{}
	controlplane.Eventually(t, 10*time.Minute, func(ctx context.Context) error {
		nodes, reports := &millracev1beta1.LBNodeList{}, &metav1.PartialObjectMetadataList{}
		reports.SetGroupVersionKind(millracev1beta1.GroupVersion.WithKind("LBNodeReportList"))
		if err := c.client.List(ctx, nodes); err != nil {
			return err
		}
		if err := c.client.List(ctx, reports); err != nil {
			return err
		}
		clear(ids)
		addresses := 0
		for i := range nodes.Items {
			ids[nodes.Items[i].Spec.ID] = true
			addresses += len(nodes.Items[i].Spec.Addresses)
		}
		if addresses != c.nodes || len(ids) != c.nodes || len(reports.Items) != c.nodes {
			return fmt.Errorf("%d ids, %d addresses and %d reports of %d nodes", len(ids), addresses, len(reports.Items), c.nodes)
		}
		return nil
	})
	c.report.Add("all Nodes come at once: until the API server has them", created.Seconds(), float64(c.nodes)/50, "s")
	c.report.Add("the same: until all have ids", time.Since(began).Seconds(), float64(c.nodes)/25, "s")
	c.report.Add("writes for a node", float64(c.operatorWrites(t)-before)/float64(c.nodes), 3, "")
}

// reportState lets all agents report and returns the operator's CPU time and writes until it is idle.
func (c *manyNodes) reportState(t *testing.T, state millracev1beta1.SessionState) (processor time.Duration, writes int) {
	t.Helper()
	current, err := c.tunnelState(t.Context())
	must(t, err)
	c.keys = tunnelkey.Adopt(c.keys, current)
	keys := &millracev1beta1.TunnelKeysStatus{Sending: int64(c.keys.Sending), Required: c.keys.Required}
	for _, generation := range c.keys.Accepted {
		keys.Accepted = append(keys.Accepted, int64(generation))
	}
	used, before := c.operator.processorTime(t), len(c.awaitIdle(t, time.Second))
	c.atOnce(t, func(ctx context.Context, number int) error {
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: nodeName(number)}}
		if err := c.get(ctx, report); err != nil {
			return err
		}
		since := metav1.Now()
		report.Status = millracev1beta1.LBNodeReportStatus{
			Version: "v1.0.0", XDPModes: "Native", TunnelKeys: keys,
			Interfaces: []millracev1beta1.InterfaceStatus{{Name: "eth0", XDPMode: "Native"}, {Name: "eth1", XDPMode: "Native"}},
			Sessions: []millracev1beta1.SessionStatus{
				{Peer: "router1", Address: "198.51.100.251", State: state, Since: &since},
				{Peer: "router2", Address: "198.51.100.252", State: millracev1beta1.SessionEstablished, Since: &since},
			},
		}
		return c.client.Status().Update(ctx, report)
	})
	return c.operator.processorTime(t) - used, len(c.awaitIdle(t, 2*time.Second)) - before
}

func (c *manyNodes) reports(t *testing.T) {
	processor, writes := c.reportState(t, millracev1beta1.SessionEstablished)
	c.report.Add("all agents report at once: processor for each report", milliseconds(processor)/float64(c.nodes), 1, "ms")
	c.report.Add("the same: writes of the operator", float64(writes), 20, "")
}

func (c *manyNodes) losesRouter(t *testing.T) {
	processor, writes := c.reportState(t, millracev1beta1.SessionActive)
	c.report.Add("a router is lost: processor for each report", milliseconds(processor)/float64(c.nodes), 1, "ms")
	c.report.Add("the same: writes of the operator", float64(writes), 20, "")
}

func (c *manyNodes) serves(t *testing.T) {
	const services = 100
	assigned := c.firstAddresses(t, namespace, services)
	took, _ := awaitAssigned(t, assigned, c.servicesAtRate(t, services))
	c.report.Add("Services at 50/s: until assigned, median", milliseconds(took[len(took)/2]), 50, "ms")
	c.report.Add("the same: 99th percentile", milliseconds(took[len(took)*99/100]), 500, "ms")
	c.report.Add("memory", float64(c.residentMemory(t))/(1<<20), 512, "MiB")
}

// restarts replaces the operator, with all objects up to date.
func (c *manyNodes) restarts(t *testing.T) {
	before := len(c.awaitIdle(t, 2*time.Second))
	c.operator.stop(t)
	assigned, began := c.firstAddresses(t, namespace, 1), time.Now()
	c.operator = c.run(t)
	c.service(t, "after")
	awaitAssigned(t, assigned, map[string]time.Time{"after": began})
	c.report.Add("a restart: until a Service is assigned", time.Since(began).Seconds(), 30, "s")
	writes := c.awaitIdle(t, 2*time.Second)[before:]
	others := slices.DeleteFunc(writes, func(write controlplane.Write) bool { return write.Namespace == namespace || write.Resource == "vips" })
	c.report.Add("a restart: writes of what is not the Service's", float64(len(others)), 5, "")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (c *manyNodes) residentMemory(t *testing.T) int {
	t.Helper()
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", c.operator.command.Process.Pid))
	must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	must(t, err)
	return pages * os.Getpagesize()
}
