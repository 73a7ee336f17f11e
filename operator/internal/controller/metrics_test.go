// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/hack/catalogue"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

func poolWithFree(name, prefix string, free int64) *millracev1beta1.VIPPool {
	return &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{prefix}},
		Status:     millracev1beta1.VIPPoolStatus{Free: &free},
	}
}

// limitedPool permits two addresses per namespace, and nine for namespaces with the label gold.
func limitedPool(name, prefix string) *millracev1beta1.VIPPool {
	pool := poolWithFree(name, prefix, 0)
	pool.Spec.PerNamespace = &millracev1beta1.NamespaceQuota{Max: 2, Overrides: []millracev1beta1.NamespaceQuotaOverride{{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}, Max: 9,
	}}}
	return pool
}

func namespaceLabelled(name, tier string) *metav1.PartialObjectMetadata {
	namespace := control.NamespaceMetadata()
	namespace.Name, namespace.Labels = name, map[string]string{"tier": tier}
	return namespace
}

func claimedVIP(address, pool string, claims ...millracev1beta1.VIPClaim) *millracev1beta1.VIP {
	return &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec:       millracev1beta1.VIPSpec{Address: address, Pool: pool, Claims: claims},
	}
}

func claimOf(name string) millracev1beta1.VIPClaim {
	return millracev1beta1.VIPClaim{Namespace: "shop", Name: name, UID: name}
}

func serviceWithReason(name, reason string) *corev1.Service {
	status := metav1.ConditionFalse
	if reason == millracev1beta1.ReasonAddressAssigned {
		status = metav1.ConditionTrue
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{
			Type: millracev1beta1.ConditionAddressAssigned, Status: status, Reason: reason,
		}}},
	}
}

func nodeAndReport(name string, state millracev1beta1.SessionState) []client.Object {
	return []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}},
		&millracev1beta1.LBNodeReport{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     millracev1beta1.LBNodeReportStatus{Sessions: []millracev1beta1.SessionStatus{{State: state}}},
		},
	}
}

func reportWith(name string, problems ...string) *millracev1beta1.LBNodeReport {
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
	report.Status.Conditions = []metav1.Condition{{Type: millracev1beta1.ConditionProgrammed, Status: metav1.ConditionTrue}}
	for _, problem := range problems {
		report.Status.Conditions = append(report.Status.Conditions, metav1.Condition{Type: problem, Status: metav1.ConditionFalse})
	}
	return report
}

func missedPeer(name string) *millracev1beta1.LBPeer {
	return &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: millracev1beta1.LBPeerStatus{Conditions: []metav1.Condition{{
			Type: millracev1beta1.ConditionPathsVerified, Status: metav1.ConditionFalse, Reason: millracev1beta1.ReasonRouteMissing,
		}}},
	}
}

func advertisementOf(name, node, pool string) *millracev1beta1.VIPAdvertisement {
	object := &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if node != "" {
		object.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": node}}
	}
	if pool != "" {
		object.Spec.Pools = []string{pool}
	}
	return object
}

func seriesOf(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var values []string
			for _, label := range metric.GetLabel() {
				values = append(values, label.GetValue())
			}
			if value := metric.GetGauge().GetValue(); value != 0 {
				got[fmt.Sprintf("%s{%s}", strings.TrimPrefix(family.GetName(), "millrace_"), strings.Join(values, ","))] = value
			}
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	released := claimOf("c")
	released.Release = &millracev1beta1.ClaimRelease{}
	vips := []client.Object{
		claimedVIP("203.0.113.1", "a", claimOf("a")), claimedVIP("203.0.113.2", "a", claimOf("b")),
		claimedVIP("203.0.113.3", "a", released), claimedVIP("203.0.113.4", ""), claimedVIP("198.51.100.1", "b", claimOf("d")),
		claimedVIP("198.51.100.130", ""),
	}
	pools := []client.Object{poolWithFree("a", "203.0.113.0/24", 252), poolWithFree("b", "198.51.100.0/28", 15)}
	for _, test := range []struct {
		name    string
		objects [][]client.Object
		want    map[string]float64
	}{
		{"nothing", nil, nil},
		{"pools", [][]client.Object{pools, vips}, map[string]float64{
			"pool_addresses{a,Free}": 252, "pool_addresses{a,Bound}": 2, "pool_addresses{a,Releasing}": 1, "pool_addresses{a,Reserved}": 1,
			"pool_addresses{b,Free}": 15, "pool_addresses{b,Bound}": 1, "vips_announcers{none}": 3,
		}},
		{"quotas", [][]client.Object{
			{limitedPool("a", "203.0.113.0/24"), namespaceLabelled("shop", "gold"), namespaceLabelled("office", "")}, vips,
			{claimedVIP("203.0.113.9", "", millracev1beta1.VIPClaim{Namespace: "office", Name: "fax"})},
		}, map[string]float64{
			"pool_addresses{a,Bound}": 2, "pool_addresses{a,Releasing}": 1, "pool_addresses{a,Reserved}": 2, "vips_announcers{none}": 3,
			"pool_quota_addresses{shop,a}": 9, "pool_quota_used_addresses{shop,a}": 3,
			"pool_quota_addresses{office,a}": 2, "pool_quota_used_addresses{office,a}": 1,
		}},
		{"waiting Services", [][]client.Object{{
			serviceWithReason("a", millracev1beta1.ReasonAddressAssigned), serviceWithReason("b", millracev1beta1.ReasonPoolExhausted),
			serviceWithReason("c", millracev1beta1.ReasonPoolExhausted), serviceWithReason("d", millracev1beta1.ReasonForeignAddress),
			// Other programs wrote these reasons.
			serviceWithReason("e", "Any1"), serviceWithReason("f", "Any2"),
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "g"}},
		}}, map[string]float64{"services_pending{PoolExhausted}": 2, "services_pending{ForeignAddress}": 1, "services_pending{Other}": 2}},
		{"nodes with problems", [][]client.Object{
			nodeAndReport("n1", millracev1beta1.SessionEstablished)[:1],
			{reportWith("n2", millracev1beta1.ConditionReady, millracev1beta1.ConditionBGPEstablished, "Made/Up"), reportWith("n3")},
			nodeAndReport("n2", "")[:1], nodeAndReport("n3", "")[:1],
			{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w", Labels: map[string]string{corev1.LabelOSStable: "windows"}}}},
		}, map[string]float64{
			// Labels are sorted by name: condition, node.
			"node_problem{Ready,n2}": 1, "node_problem{BGPEstablished,n2}": 1, "nodes{false}": 1, "nodes{true}": 2,
		}},
		{"all nodes announce all", [][]client.Object{
			vips, nodeAndReport("n1", millracev1beta1.SessionEstablished), nodeAndReport("n2", millracev1beta1.SessionEstablished),
			{advertisementOf("all", "", "")},
		}, map[string]float64{"vips_announcers{several}": 3, "nodes{false}": 2}},
		{"session of one node lost", [][]client.Object{
			vips, nodeAndReport("n1", millracev1beta1.SessionEstablished), nodeAndReport("n2", millracev1beta1.SessionIdle),
			{advertisementOf("all", "", "")},
		}, map[string]float64{"vips_announcers{one}": 3, "nodes{false}": 2}},
		{"one pool and an additional node", [][]client.Object{
			vips, nodeAndReport("n1", millracev1beta1.SessionEstablished), nodeAndReport("n2", millracev1beta1.SessionEstablished),
			{advertisementOf("one", "n1", "a"), advertisementOf("same", "n1", "a"), advertisementOf("b", "", "b")},
		}, map[string]float64{"vips_announcers{one}": 2, "vips_announcers{several}": 1, "nodes{false}": 2}},
		{"two advertisements, one node each", [][]client.Object{
			vips, nodeAndReport("n1", millracev1beta1.SessionEstablished), nodeAndReport("n2", millracev1beta1.SessionEstablished),
			{advertisementOf("one", "n1", "a"), advertisementOf("two", "n2", "a")},
		}, map[string]float64{"vips_announcers{several}": 2, "vips_announcers{none}": 1, "nodes{false}": 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := clientgoscheme.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			if err := millracev1beta1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			builder := fake.NewClientBuilder().WithScheme(scheme)
			for _, objects := range test.objects {
				builder = builder.WithObjects(objects...)
			}
			elected := make(chan struct{})
			c := &collector{objects: builder.Build(), elected: elected}
			if got := seriesOf(t, c); len(got) > 0 {
				t.Errorf("a standby operator exposes %v", got)
			}
			close(elected)
			if got := seriesOf(t, c); !maps.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestCatalogue(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := millracev1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := append(nodeAndReport("n1", ""), limitedPool("a", "203.0.113.0/24"), namespaceLabelled("shop", ""),
		claimedVIP("203.0.113.1", "a", claimOf("a")), reportWith("n2", millracev1beta1.ConditionReady), missedPeer("tor1"))
	elected := make(chan struct{})
	close(elected)
	catalogue.Own(t, "operator", &collector{
		objects: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), elected: elected,
	})
	catalogue.Foreign(t, "controller-runtime", metrics.Registry.(prometheus.Collector))
}
