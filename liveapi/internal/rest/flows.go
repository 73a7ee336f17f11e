// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

type flows struct {
	resource
	sources Sources
}

func newFlows(sources Sources) *flows {
	return &flows{sources: sources, resource: resource{
		singular: "flow", namespaced: true,
		object: func() runtime.Object { return &livev1alpha1.Flow{} },
		list:   func() runtime.Object { return &livev1alpha1.FlowList{} },
		columns: []metav1.TableColumnDefinition{
			column("Client", "Address and port of the client."),
			column("VIP", "Address and port that the client connects to."),
			column("Protocol", "TCP, UDP or SCTP."),
			column("Endpoint", "Address and port of the pod."),
			column("Node", "The pod's node."),
			column("State", "Established or Closing."),
			column("Last seen", "Time since the client's last packet."),
			wide("Name", "Name of the object."),
		},
		cells: func(object runtime.Object, now time.Time) []any {
			flow, ok := object.(*livev1alpha1.Flow)
			if !ok {
				return nil
			}
			return []any{flow.Client, flow.VIP, flow.Protocol, orNone(flow.Endpoint), flow.Node, flow.State, age(flow.LastSeen, now), flow.Name}
		},
	}}
}

// List queries the nodes with pods of the Service.
func (f *flows) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	query, err := queryOf(ctx, livev1alpha1.ResourceFlows, options)
	if err != nil {
		return nil, err
	}
	if err := f.sources.known(ctx, query.Service); err != nil {
		return nil, err
	}
	list := &livev1alpha1.FlowList{ListMeta: metav1.ListMeta{ResourceVersion: version(time.Now())}, Items: []livev1alpha1.Flow{}}
	if none(options, query.Service.Name) {
		return list, nil
	}
	nodes, err := f.sources.Cluster.NodesOf(ctx, query.Service)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	limit := query.Limit
	// An agent returns arbitrary flows if there are more than the limit, so only the maximum limit ensures
	// that the latest flows are included.
	query.Limit = live.MaxLimit
	answers, silent := f.sources.Collector.Flows(ctx, nodes, query)
	slices.Sort(silent)
	warnSilent(ctx, store.Coverage{Nodes: len(nodes), Silent: silent})
	truncated := false
	for i := range answers {
		truncated = truncated || answers[i].Truncated
		for j := range answers[i].Items {
			list.Items = append(list.Items, flowOf(query.Service, answers[i].Node, &answers[i].Items[j]))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b livev1alpha1.Flow) int { return timeOf(b.LastSeen).Compare(timeOf(a.LastSeen)) })
	if len(list.Items) > limit {
		list.Items, truncated = list.Items[:limit], true
	}
	if truncated {
		warnTruncated(ctx, livev1alpha1.ResourceFlows, len(list.Items))
	}
	return list, nil
}

func flowOf(service store.Name, node string, flow *live.Flow) livev1alpha1.Flow {
	return livev1alpha1.Flow{
		TypeMeta: metav1.TypeMeta{APIVersion: livev1alpha1.GroupVersion.String(), Kind: "Flow"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: objectName(flow.Protocol, flow.Client.String(), flow.VIP.String()),
			Labels: map[string]string{livev1alpha1.LabelService: service.Name},
		},
		Service: service.Name, Protocol: flow.Protocol, Client: flow.Client.String(), VIP: flow.VIP.String(),
		Endpoint: endpoint(flow.Endpoint), Node: node, State: flow.State, LastSeen: moment(flow.LastSeen),
	}
}

func endpoint(address netip.AddrPort) string {
	if !address.IsValid() {
		return ""
	}
	return address.String()
}

func timeOf(when *metav1.Time) time.Time {
	if when == nil {
		return time.Time{}
	}
	return when.Time
}
