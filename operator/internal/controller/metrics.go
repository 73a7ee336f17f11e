// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

// collectTimeout bounds how long a scrape waits for caches to sync.
const collectTimeout = time.Second

const stateFree = "Free"

// reasonOther replaces unknown reasons: users who may write the status of Services must not be able to create
// series.
const reasonOther = "Other"

var waitingReasons = []string{
	millracev1beta1.ReasonPoolExhausted, millracev1beta1.ReasonNoMatchingPool, millracev1beta1.ReasonAddressInUse,
	millracev1beta1.ReasonAddressNotInPool, millracev1beta1.ReasonPortConflict, millracev1beta1.ReasonInvalid,
	millracev1beta1.ReasonQuotaExceeded, millracev1beta1.ReasonForeignAddress, millracev1beta1.ReasonWriteFailed, reasonOther,
}

// nodeConditions are True or absent on a node without problems. Others have no series, so that agents
// cannot create any.
var nodeConditions = []string{
	millracev1beta1.ConditionReady, millracev1beta1.ConditionProgrammed, millracev1beta1.ConditionAttached,
	millracev1beta1.ConditionBGPEstablished, millracev1beta1.ConditionHostCompatible, millracev1beta1.ConditionNodesReachable,
	millracev1beta1.ConditionRemovalsApplied, millracev1beta1.ConditionEndpointsHealthy, millracev1beta1.ConditionTunnelKeyProgrammed,
	millracev1beta1.ConditionTunnelKeyCurrent, millracev1beta1.ConditionFlowSeedConsistent, millracev1beta1.ConditionNodeReady,
}

var announcerCounts = [...]string{"none", "one", "several"}

var (
	poolDescription = prometheus.NewDesc("millrace_pool_addresses",
		"Addresses of a VIPPool by state: Free, or the phase of their VIP.", []string{"pool", "state"}, nil)
	quotaDescription = prometheus.NewDesc("millrace_pool_quota_addresses",
		"Quota of addresses of a VIPPool (spec.perNamespace) of each namespace that uses the pool.", []string{"pool", "namespace"}, nil)
	quotaUsedDescription = prometheus.NewDesc("millrace_pool_quota_used_addresses",
		"Addresses of a VIPPool with a quota that a namespace uses.", []string{"pool", "namespace"}, nil)
	waitingDescription = prometheus.NewDesc("millrace_services_pending",
		"Services without the addresses that they request, by the reason of the condition AddressAssigned.", []string{"reason"}, nil)
	announcersDescription = prometheus.NewDesc("millrace_vips_announcers",
		"VIPs of Services by the number of nodes that can announce them: none, one or several.", []string{"nodes"}, nil)
	problemDescription = prometheus.NewDesc("millrace_node_problem",
		"1 for each condition of an LBNodeReport that is not True; a node without problems has no series.", []string{"node", "condition"}, nil)
	peerDescription = prometheus.NewDesc("millrace_peer_problem",
		"1 for each LBPeer whose condition PathsVerified is False: its routers do not use all routes.", []string{"peer", "reason"}, nil)
	nodesDescription = prometheus.NewDesc("millrace_nodes",
		"Linux nodes by whether their agent has written its LBNodeReport: true or false.", []string{"reported"}, nil)
)

// setupMetrics registers metrics that only the leader exposes, so that sums over replicas are right.
func setupMetrics(mgr ctrl.Manager) error {
	if err := metrics.Registry.Register(&collector{objects: mgr.GetClient(), elected: mgr.Elected()}); err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	return nil
}

type collector struct {
	objects client.Reader
	elected <-chan struct{}
}

func (c *collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolDescription, quotaDescription, quotaUsedDescription, waitingDescription, announcersDescription, problemDescription, peerDescription, nodesDescription} {
		descriptions <- d
	}
}

// Collect emits no series for objects that cannot be read.
func (c *collector) Collect(series chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var objects counted
	objects.namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	for _, list := range []client.ObjectList{
		&objects.namespaces, &objects.pools, &objects.vips, &objects.services, &objects.advertisements, &objects.nodes, &objects.reports, &objects.peers,
	} {
		if err := c.objects.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return
		}
	}
	objects.collect(series)
}

type counted struct {
	namespaces     metav1.PartialObjectMetadataList
	pools          millracev1beta1.VIPPoolList
	vips           millracev1beta1.VIPList
	services       corev1.ServiceList
	advertisements millracev1beta1.VIPAdvertisementList
	nodes          corev1.NodeList
	reports        millracev1beta1.LBNodeReportList
	peers          millracev1beta1.LBPeerList
}

func (o *counted) collect(series chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, count int64, values ...string) {
		series <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(count), values...)
	}
	phases := o.phases()
	for i := range o.pools.Items {
		pool := &o.pools.Items[i]
		if free := pool.Status.Free; free != nil {
			gauge(poolDescription, *free, pool.Name, stateFree)
		}
		for _, phase := range []millracev1beta1.VIPPhase{
			millracev1beta1.VIPBound, millracev1beta1.VIPReserved, millracev1beta1.VIPReleasing,
		} {
			gauge(poolDescription, phases[pool.Name][phase], pool.Name, string(phase))
		}
	}
	for _, quota := range o.quotas() {
		gauge(quotaDescription, quota.most, quota.pool, quota.namespace)
		gauge(quotaUsedDescription, quota.used, quota.pool, quota.namespace)
	}
	waiting := o.waiting()
	for _, reason := range waitingReasons {
		gauge(waitingDescription, waiting[reason], reason)
	}
	for i, vips := range o.announcers() {
		gauge(announcersDescription, vips, announcerCounts[i])
	}
	for i := range o.peers.Items {
		peer := &o.peers.Items[i]
		reached := meta.FindStatusCondition(peer.Status.Conditions, millracev1beta1.ConditionPathsVerified)
		if reached != nil && reached.Status == metav1.ConditionFalse {
			gauge(peerDescription, 1, peer.Name, reached.Reason)
		}
	}
	o.collectNodes(gauge)
}

func (o *counted) collectNodes(gauge func(d *prometheus.Desc, count int64, values ...string)) {
	reported := map[string]bool{}
	for i := range o.reports.Items {
		report := &o.reports.Items[i]
		reported[report.Name] = len(report.Status.Conditions) > 0
		for _, condition := range report.Status.Conditions {
			if condition.Status != metav1.ConditionTrue && slices.Contains(nodeConditions, condition.Type) {
				gauge(problemDescription, 1, report.Name, condition.Type)
			}
		}
	}
	counts := map[bool]int64{}
	for i := range o.nodes.Items {
		// Agents run on Linux nodes only.
		if system := o.nodes.Items[i].Labels[corev1.LabelOSStable]; system == "" || system == "linux" {
			counts[reported[o.nodes.Items[i].Name]]++
		}
	}
	for _, is := range []bool{true, false} {
		gauge(nodesDescription, counts[is], strconv.FormatBool(is))
	}
}

// phases counts VIPs by pool and phase, manually created VIPs in the pool of their address.
func (o *counted) phases() map[string]map[millracev1beta1.VIPPhase]int64 {
	counts := map[string]map[millracev1beta1.VIPPhase]int64{}
	pools := make([]desired.Pool, 0, len(o.pools.Items))
	for i := range o.pools.Items {
		if pool, problems := desired.ParsePool(&o.pools.Items[i]); len(problems) == 0 {
			pools = append(pools, pool)
		}
	}
	for i := range o.vips.Items {
		vip := &o.vips.Items[i]
		name := vip.Spec.Pool
		if address, ok := addressOf(vip); ok && name == "" {
			if at := slices.IndexFunc(pools, func(p desired.Pool) bool { return p.Addresses.Contains(address) }); at >= 0 {
				name = pools[at].Name
			}
		}
		if counts[name] == nil {
			counts[name] = map[millracev1beta1.VIPPhase]int64{}
		}
		counts[name][phaseOf(vip)]++
	}
	return counts
}

type usedQuota struct {
	pool, namespace string
	used, most      int64
}

func (o *counted) quotas() []usedQuota {
	pools, _ := desired.Pools(o.pools.Items, desired.NewOccupation(nil))
	if !slices.ContainsFunc(pools, func(pool desired.Pool) bool { _, limited := pool.Quota(nil); return limited }) {
		return nil
	}
	table := ipam.NewTable()
	for i := range o.vips.Items {
		if address, ok := addressOf(&o.vips.Items[i]); ok {
			table.Put(convert.VIP(address, &o.vips.Items[i]))
		}
	}
	planned := convert.Pools(pools)
	var quotas []usedQuota
	for i := range o.namespaces.Items {
		namespace := &o.namespaces.Items[i]
		for n := range pools {
			most, limited := pools[n].Quota(namespace.Labels)
			if used := table.Used(planned[n], namespace.Name); limited && used > 0 {
				quotas = append(quotas, usedQuota{pools[n].Name, namespace.Name, int64(used), int64(most)})
			}
		}
	}
	return quotas
}

// waiting counts Services without all requested addresses, by reason.
func (o *counted) waiting() map[string]int64 {
	counts := map[string]int64{}
	for i := range o.services.Items {
		condition := meta.FindStatusCondition(o.services.Items[i].Status.Conditions, millracev1beta1.ConditionAddressAssigned)
		if condition == nil || condition.Status == "True" {
			continue
		}
		reason := condition.Reason
		if !slices.Contains(waitingReasons, reason) {
			reason = reasonOther
		}
		counts[reason]++
	}
	return counts
}

// announcers counts the VIPs of Services that no node, one node or more nodes can announce.
func (o *counted) announcers() (counts [len(announcerCounts)]int64) {
	able := o.announcing()
	var advertisements []desired.Advertisement
	var nodes []map[validation.Families][]string
	for i := range o.advertisements.Items {
		if advertisement, problems := desired.ParseAdvertisement(&o.advertisements.Items[i]); len(problems) == 0 {
			advertisements = append(advertisements, advertisement)
			nodes = append(nodes, able.firstTwo(queryOf(&advertisement)))
		}
	}
	services := map[types.NamespacedName]labels.Set{}
	for i := range o.services.Items {
		services[client.ObjectKeyFromObject(&o.services.Items[i])] = o.services.Items[i].Labels
	}
	for i := range o.vips.Items {
		vip := &o.vips.Items[i]
		if phaseOf(vip) != millracev1beta1.VIPBound {
			continue
		}
		var sets []labels.Set
		for _, claim := range vip.Spec.Claims {
			if set, found := services[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]; found && claim.UID != "" {
				sets = append(sets, set)
			}
		}
		family := validation.Families{IPv4: true}
		if address, _ := addressOf(vip); address.Is6() {
			family = validation.Families{IPv6: true}
		}
		names := map[string]bool{}
		for n := range advertisements {
			if len(names) < 2 && len(nodes[n][family]) > 0 && advertisements[n].Selects(vip.Spec.Pool, sets) {
				for _, name := range nodes[n][family] {
					names[name] = true
				}
			}
		}
		counts[min(len(names), len(counts)-1)]++
	}
	return counts
}

func (o *counted) announcing() *announcers {
	all := newAnnouncers(nil)
	for i := range o.peers.Items {
		if peer, problems := desired.ParsePeer(&o.peers.Items[i]); len(problems) == 0 {
			all.configure(peer.Name, familiesOf(&peer))
		}
	}
	for i := range o.nodes.Items {
		node := &o.nodes.Items[i]
		all.change(node.Name, func(a *announcer) {
			a.exists, a.labels, a.notReady = true, node.Labels, nodes.NotReady(node) != nil
		})
	}
	for i := range o.reports.Items {
		report := &o.reports.Items[i]
		all.change(report.Name, func(a *announcer) { a.sessions = sessionsOf(report) })
	}
	return all
}

// firstTwo returns up to two nodes for each family.
func (a *announcers) firstTwo(query *advertisementQuery) map[validation.Families][]string {
	names := map[validation.Families][]string{}
	for name, node := range a.nodes {
		able := a.familiesOfNode(query, node)
		for _, family := range []validation.Families{{IPv4: true}, {IPv6: true}} {
			if len(names[family]) < 2 && able.And(family) == family {
				names[family] = append(names[family], name)
			}
		}
	}
	return names
}
