// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/liveapi/internal/cluster"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

type serviceTraffic struct {
	resource
	sources Sources
}

func newServiceTraffic(sources Sources) *serviceTraffic {
	return &serviceTraffic{sources: sources, resource: resource{
		singular: "servicetraffic", namespaced: true,
		object: func() runtime.Object { return &livev1alpha1.ServiceTraffic{} },
		list:   func() runtime.Object { return &livev1alpha1.ServiceTrafficList{} },
		columns: []metav1.TableColumnDefinition{
			nameColumn(),
			column("Conn/s", "New connections to pods per second."),
			column("Packets/s", "Client packets per second that nodes received from routers."),
			column("Bits/s", "Size of these packets in bits per second."),
			column("Drops/s", "Packets per second that were not forwarded."),
			column("Endpoints", "Ready endpoints of all endpoints."),
			column("Nodes", "Nodes that announce the Service to a router, of all nodes with an agent."),
			column("Counted", "Time since the counters were read."),
			wide("Window", "Averaging period of the rates."),
			wide("Drops by reason", "Packets per second that were not forwarded, by reason."),
		},
		cells: trafficCells,
	}}
}

func trafficCells(object runtime.Object, now time.Time) []any {
	traffic, ok := object.(*livev1alpha1.ServiceTraffic)
	if !ok {
		return nil
	}
	reasons := make([]string, 0, len(traffic.Drops))
	for _, reason := range slices.SortedFunc(maps.Keys(traffic.Drops), func(a, b string) int {
		return cmp.Or(cmp.Compare(traffic.Drops[b], traffic.Drops[a]), strings.Compare(a, b))
	}) {
		reasons = append(reasons, reason+"="+number(traffic.Drops[reason]))
	}
	return []any{
		traffic.Name, number(traffic.Rates.Connections), number(traffic.Rates.Packets), number(traffic.Rates.Bits),
		number(traffic.Rates.Drops), fmt.Sprintf("%d/%d", traffic.Endpoints.Ready, traffic.Endpoints.Total),
		fmt.Sprintf("%d/%d", traffic.Nodes.Announcing, traffic.Nodes.Total), age(traffic.Timestamp, now),
		traffic.Window.Round(time.Second).String(), orNone(strings.Join(reasons, ",")),
	}
}

func (s *serviceTraffic) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	now, requested := time.Now(), store.Name{Namespace: request.NamespaceValue(ctx), Name: name}
	service, endpoints, ok, err := s.sources.Cluster.Service(ctx, requested)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	traffic := s.sources.Store.TrafficOf(now, requested)
	if _, counted := traffic.Services[requested]; !ok || !service.Ours && !counted {
		return nil, apierrors.NewNotFound(groupResource(livev1alpha1.ResourceServiceTraffic), name)
	}
	warnSilent(ctx, traffic.Coverage)
	var made livev1alpha1.ServiceTraffic
	s.sources.Store.Announcing(now, func(count func([]netip.Addr) int) {
		made = trafficOf(&service, endpoints, &traffic, count(service.Addresses))
	})
	return &made, nil
}

func (s *serviceTraffic) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list, traffic, err := s.collect(ctx, options)
	if err != nil {
		return nil, err
	}
	warnSilent(ctx, traffic.Coverage)
	return list, nil
}

func (s *serviceTraffic) collect(ctx context.Context, options *internalversion.ListOptions) (*livev1alpha1.ServiceTrafficList, *store.Traffic, error) {
	now := time.Now()
	services, endpoints, err := s.sources.Cluster.Services(ctx, request.NamespaceValue(ctx))
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	traffic := s.sources.Store.Traffic(now)
	list := &livev1alpha1.ServiceTrafficList{
		ListMeta:      metav1.ListMeta{ResourceVersion: version(now)},
		AnsweredNodes: int32(len(traffic.Answered)), Window: metav1.Duration{Duration: traffic.Window.Round(time.Millisecond)},
		Items: make([]livev1alpha1.ServiceTraffic, 0, len(services)),
	}
	if request.NamespaceValue(ctx) == metav1.NamespaceAll {
		list.Drops, list.Uplinks = roundedDrops(traffic.Drops), uplinksOf(traffic.Uplinks)
	}
	s.sources.Store.Announcing(now, func(count func([]netip.Addr) int) {
		for i := range services {
			service := &services[i]
			_, counted := traffic.Services[service.Name]
			if !service.Ours && !counted || !selected(options, &metav1.ObjectMeta{
				Namespace: service.Namespace, Name: service.Name.Name, Labels: service.Labels,
			}) {
				continue
			}
			list.Items = append(list.Items, trafficOf(service, endpoints[service.Name], &traffic, count(service.Addresses)))
		}
	})
	slices.SortFunc(list.Items, func(a, b livev1alpha1.ServiceTraffic) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list, &traffic, nil
}

func (s *serviceTraffic) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	return watchItems(ctx, options, source[livev1alpha1.ServiceTraffic]{
		every: live.SampleInterval,
		list: func() ([]livev1alpha1.ServiceTraffic, string, error) {
			list, _, err := s.collect(ctx, options)
			if err != nil {
				return nil, "", err
			}
			return list.Items, list.ResourceVersion, nil
		},
		// A later time alone is not a change.
		ignore: func(item *livev1alpha1.ServiceTraffic) { item.Timestamp, item.Window = nil, metav1.Duration{} },
	}), nil
}

func trafficOf(service *cluster.Service, endpoints cluster.Endpoints, traffic *store.Traffic, announcing int) livev1alpha1.ServiceTraffic {
	counted := traffic.Services[service.Name]
	made := livev1alpha1.ServiceTraffic{
		TypeMeta: metav1.TypeMeta{APIVersion: livev1alpha1.GroupVersion.String(), Kind: "ServiceTraffic"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name.Name, Labels: service.Labels,
		},
		Window:    metav1.Duration{Duration: traffic.Window.Round(time.Millisecond)},
		Rates:     ratesOf(&counted.Rates),
		Drops:     roundedDrops(counted.Drops),
		Endpoints: livev1alpha1.EndpointCount{Ready: endpoints.Ready, Total: endpoints.Total},
		Nodes:     livev1alpha1.NodeCount{Announcing: int32(announcing), Total: int32(traffic.Nodes)},
		Frontends: frontendsOf(service, counted.Frontends),
	}
	if !traffic.Oldest.IsZero() {
		made.Timestamp = &metav1.Time{Time: traffic.Oldest}
	}
	return made
}

// frontendsOf returns the frontends with counts, and the remaining frontends of the Service without.
func frontendsOf(service *cluster.Service, counted []store.Frontend) []livev1alpha1.FrontendTraffic {
	all := slices.Clone(counted)
	for _, address := range service.Addresses {
		for _, port := range service.Ports {
			name := console.FrontendName{VIP: address, Port: port.Number, Protocol: port.Protocol}
			if !slices.ContainsFunc(counted, func(f store.Frontend) bool { return f.Compare(name) == 0 }) {
				all = append(all, store.Frontend{FrontendName: name})
			}
		}
	}
	slices.SortFunc(all, func(a, b store.Frontend) int { return a.Compare(b.FrontendName) })
	made := make([]livev1alpha1.FrontendTraffic, 0, len(all))
	for i := range all {
		made = append(made, livev1alpha1.FrontendTraffic{
			VIP: all[i].VIP.String(), Port: int32(all[i].Port), Protocol: all[i].Protocol, Rates: ratesOf(&all[i].Rates),
		})
	}
	return made
}

func ratesOf(rates *store.Rates) livev1alpha1.TrafficRates {
	return livev1alpha1.TrafficRates{
		Connections: rounded(rates.Connections), Packets: rounded(rates.Packets), Bits: rounded(rates.Bits), Drops: rounded(rates.Dropped),
	}
}

func roundedDrops(drops map[string]float64) map[string]float64 {
	if len(drops) == 0 {
		return nil
	}
	made := make(map[string]float64, len(drops))
	for reason, rate := range drops {
		made[reason] = rounded(rate)
	}
	return made
}

func uplinksOf(uplinks []store.Uplink) []livev1alpha1.UplinkDrops {
	var made []livev1alpha1.UplinkDrops
	for _, uplink := range uplinks {
		made = append(made, livev1alpha1.UplinkDrops{
			Node: uplink.Node, Interface: uplink.Interface, Transmit: rounded(uplink.Transmit), Redirect: rounded(uplink.Redirect),
		})
	}
	return made
}
