// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

// watchEvery is the interval at which a watch checks for changes of announcements and sessions.
const watchEvery = time.Second

type vipAnnouncements struct {
	resource
	sources Sources
}

func newVIPAnnouncements(sources Sources) *vipAnnouncements {
	return &vipAnnouncements{sources: sources, resource: resource{
		singular: "vipannouncement", shortNames: []string{"vipa"},
		object: func() runtime.Object { return &livev1alpha1.VIPAnnouncement{} },
		list:   func() runtime.Object { return &livev1alpha1.VIPAnnouncementList{} },
		columns: []metav1.TableColumnDefinition{
			nameColumn(),
			column("Address", "The VIP."),
			column("Nodes", "Nodes that announce the VIP, of all nodes with an agent."),
			column("Peers", "LBPeers that the VIP is announced to."),
			column("Withheld", "Reasons why nodes do not announce the VIP, with counts."),
			wide("Announced by", "Nodes that announce the VIP; the first ten of each group."),
			wide("Message", "Reason of the first nodes that do not."),
		},
		cells: announcementCells,
	}}
}

func announcementCells(object runtime.Object, _ time.Time) []any {
	announcement, ok := object.(*livev1alpha1.VIPAnnouncement)
	if !ok {
		return nil
	}
	var peers, nodes, withheld []string
	known, message := map[string]bool{}, ""
	for _, group := range announcement.Announced {
		for _, peer := range group.Peers {
			if !known[peer] {
				known[peer] = true
				peers = append(peers, peer)
			}
		}
		names := group.Nodes
		if len(names) > livev1alpha1.NodeNamesInLists {
			names = names[:livev1alpha1.NodeNamesInLists]
		}
		nodes = append(nodes, names...)
		if more := int(group.Count) - len(names); more > 0 {
			nodes = append(nodes, fmt.Sprintf("%d more", more))
		}
	}
	for _, group := range announcement.Withheld {
		withheld = append(withheld, fmt.Sprintf("%s=%d", group.Reason, group.Count))
		if message == "" {
			message = group.Message
		}
	}
	return []any{
		announcement.Name, announcement.Address, fmt.Sprintf("%d/%d", announcement.Nodes.Announcing, announcement.Nodes.Total),
		orNone(strings.Join(peers, ",")), orNone(strings.Join(withheld, ",")), orNone(strings.Join(nodes, ",")), orNone(message),
	}
}

func (v *vipAnnouncements) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	address, ok := addressOf(name)
	if !ok {
		return nil, apierrors.NewNotFound(groupResource(livev1alpha1.ResourceVIPAnnouncements), name)
	}
	found, coverage, ok := v.sources.Store.Announcement(time.Now(), address)
	warnSilent(ctx, coverage)
	if !ok {
		return nil, apierrors.NewNotFound(groupResource(livev1alpha1.ResourceVIPAnnouncements), name)
	}
	made := announcementOf(&found, coverage.Nodes)
	withoutRanges(&made)
	return &made, nil
}

func addressOf(name string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(name)
	if err != nil {
		address, err = netip.ParseAddr(strings.ReplaceAll(name, "-", ":"))
	}
	return address, err == nil && millracev1beta1.VIPName(address) == name
}

func (v *vipAnnouncements) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list, coverage := v.collect(options)
	warnSilent(ctx, coverage)
	return list, nil
}

func (v *vipAnnouncements) collect(options *internalversion.ListOptions) (*livev1alpha1.VIPAnnouncementList, store.Coverage) {
	now := time.Now()
	all, coverage := v.sources.Store.Announcements(now, livev1alpha1.NodeNamesInLists)
	list := &livev1alpha1.VIPAnnouncementList{
		ListMeta: metav1.ListMeta{ResourceVersion: version(now)}, NodeAnswers: answersOf(coverage),
		Items: make([]livev1alpha1.VIPAnnouncement, 0, len(all)),
	}
	for i := range all {
		made := announcementOf(&all[i], coverage.Nodes)
		if selected(options, &made.ObjectMeta) {
			list.Items = append(list.Items, made)
		}
	}
	return list, coverage
}

func (v *vipAnnouncements) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	return watchItems(ctx, options, source[livev1alpha1.VIPAnnouncement]{
		every: watchEvery, generations: newGenerations(v.sources.Store),
		list: func() ([]livev1alpha1.VIPAnnouncement, string, error) {
			list, _ := v.collect(options)
			for i := range list.Items {
				withoutRanges(&list.Items[i])
			}
			return list.Items, list.ResourceVersion, nil
		},
	}), nil
}

// generations detects changes of a store, including changes of the set of silent nodes.
type generations struct {
	store  *store.Store
	known  bool
	last   uint64
	silent int
}

func newGenerations(of *store.Store) *generations { return &generations{store: of} }

func (g *generations) changed() bool {
	generation, _ := g.store.Changes()
	silent := len(g.store.Coverage(time.Now()).Silent)
	changed := !g.known || generation != g.last || silent != g.silent
	g.known, g.last, g.silent = true, generation, silent
	return changed
}

// since reports whether the store may have changed since a resource version. One second earlier is included,
// because the replicas' clocks differ.
func (g *generations) since(resourceVersion string) bool {
	millis, err := strconv.ParseInt(resourceVersion, 10, 64)
	_, last := g.store.Changes()
	return err != nil || !last.Before(time.UnixMilli(millis).Add(-time.Second))
}

func announcementOf(found *store.Announcement, nodes int) livev1alpha1.VIPAnnouncement {
	made := livev1alpha1.VIPAnnouncement{
		TypeMeta:   metav1.TypeMeta{APIVersion: livev1alpha1.GroupVersion.String(), Kind: "VIPAnnouncement"},
		ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(found.Address)},
		Address:    found.Address.String(),
		Nodes:      livev1alpha1.NodeCount{Announcing: int32(found.Announcing), Total: int32(nodes)},
	}
	for _, group := range found.Groups {
		if len(group.Peers) > 0 {
			made.Announced = append(made.Announced, livev1alpha1.Announced{
				Peers: group.Peers, Count: int32(group.Count), Nodes: group.Nodes, NodeRanges: rangesText(group.Ranges),
			})
			continue
		}
		made.Withheld = append(made.Withheld, livev1alpha1.Withheld{
			Reason: group.Reason, Message: group.Message, Count: int32(group.Count), Nodes: group.Nodes, NodeRanges: rangesText(group.Ranges),
		})
	}
	return made
}

func withoutRanges(announcement *livev1alpha1.VIPAnnouncement) {
	for i := range announcement.Announced {
		announcement.Announced[i].NodeRanges = ""
	}
	for i := range announcement.Withheld {
		announcement.Withheld[i].NodeRanges = ""
	}
}

// rangesText formats ranges as 0-4,7.
func rangesText(ranges [][2]int32) string {
	var text []byte
	for _, one := range ranges {
		if len(text) > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(one[0]), 10)
		if one[1] > one[0] {
			text = strconv.AppendInt(append(text, '-'), int64(one[1]), 10)
		}
	}
	return string(text)
}
