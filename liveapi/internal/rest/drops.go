// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

type drops struct {
	resource
	sources Sources
}

func newDrops(sources Sources) *drops {
	return &drops{sources: sources, resource: resource{
		singular: "drop", namespaced: true,
		object: func() runtime.Object { return &livev1alpha1.Drop{} },
		list:   func() runtime.Object { return &livev1alpha1.DropList{} },
		columns: []metav1.TableColumnDefinition{
			column("Age", "Time since the drop."),
			column("Reason", "Why."),
			column("Client", "Address and port of the client."),
			column("VIP", "Address and port that the client connects to."),
			column("Protocol", "The packet's protocol."),
			column("Node", "Where."),
			wide("Interface", "Incoming interface, or intended outgoing interface of a reply."),
			wide("Length", "Size of the IP packet in bytes."),
			wide("Name", "Name of the object."),
		},
		cells: func(object runtime.Object, now time.Time) []any {
			drop, ok := object.(*livev1alpha1.Drop)
			if !ok {
				return nil
			}
			return []any{
				age(&metav1.Time{Time: drop.Time.Time}, now), drop.Reason, drop.Client, drop.VIP, drop.Protocol, drop.Node,
				drop.Interface, strconv.Itoa(int(drop.Length)), drop.Name,
			}
		},
	}}
}

// List queries all nodes, because routers can send the packets of a Service to any node.
func (d *drops) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	query, err := queryOf(ctx, livev1alpha1.ResourceDrops, options)
	if err != nil {
		return nil, err
	}
	if err := d.sources.known(ctx, query.Service); err != nil {
		return nil, err
	}
	list := &livev1alpha1.DropList{ListMeta: metav1.ListMeta{ResourceVersion: version(time.Now())}, Items: []livev1alpha1.Drop{}}
	if none(options, query.Service.Name) {
		return list, nil
	}
	answers, silent, nodes := d.sources.Collector.Drops(ctx, query)
	slices.Sort(silent)
	warnSilent(ctx, store.Coverage{Nodes: nodes, Silent: silent})
	truncated := false
	for i := range answers {
		truncated = truncated || answers[i].Truncated
		for j := range answers[i].Items {
			list.Items = append(list.Items, dropOf(query.Service, answers[i].Node, &answers[i].Items[j]))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b livev1alpha1.Drop) int { return b.Time.Compare(a.Time.Time) })
	if len(list.Items) > query.Limit {
		list.Items, truncated = list.Items[:query.Limit], true
	}
	if truncated {
		warnTruncated(ctx, livev1alpha1.ResourceDrops, len(list.Items))
	}
	return list, nil
}

func dropOf(service store.Name, node string, drop *console.Drop) livev1alpha1.Drop {
	return livev1alpha1.Drop{
		TypeMeta: metav1.TypeMeta{APIVersion: livev1alpha1.GroupVersion.String(), Kind: "Drop"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: objectName(node, strconv.FormatInt(drop.Time.UnixNano(), 10), drop.Source.String()),
			Labels: map[string]string{livev1alpha1.LabelService: service.Name},
		},
		Service: service.Name, Time: metav1.NewMicroTime(drop.Time), Reason: drop.Reason, Protocol: drop.Protocol,
		Client: drop.Source.String(), VIP: drop.Destination.String(), Node: node, Interface: drop.Interface, Length: int32(drop.Length),
	}
}
