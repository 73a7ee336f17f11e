// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

type bgpSessions struct {
	resource
	sources Sources
}

func newBGPSessions(sources Sources) *bgpSessions {
	return &bgpSessions{sources: sources, resource: resource{
		singular: "bgpsession", shortNames: []string{"bgps"},
		object: func() runtime.Object { return &livev1alpha1.BGPSession{} },
		list:   func() runtime.Object { return &livev1alpha1.BGPSessionList{} },
		columns: []metav1.TableColumnDefinition{
			nameColumn(),
			column("Node", "The node."),
			column("Peer", "The LBPeer."),
			column("Address", "The peer's address."),
			column("State", "The session's state (RFC 4271)."),
			column("Since", "Time since the session was established or lost."),
			column("Routes", "Routes announced to the peer."),
			column("BFD", "The state of the BFD session."),
			wide("Flaps", "Number of lost sessions since the agent started."),
			wide("Local address", "The node's address in the session."),
			wide("Last error", "Reason why the last session or attempt ended."),
		},
		cells: sessionCells,
	}}
}

func sessionCells(object runtime.Object, now time.Time) []any {
	session, ok := object.(*livev1alpha1.BGPSession)
	if !ok {
		return nil
	}
	return []any{
		session.Name, session.Node, session.Peer, session.Address, session.State, age(session.Since, now), session.RoutesSent,
		orNone(session.BFD), session.Flaps, orNone(session.LocalAddress), orNone(session.LastError),
	}
}

func (b *bgpSessions) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	list, coverage := b.collect(nil)
	warnSilent(ctx, coverage)
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, apierrors.NewNotFound(groupResource(livev1alpha1.ResourceBGPSessions), name)
}

func (b *bgpSessions) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list, coverage := b.collect(options)
	warnSilent(ctx, coverage)
	return list, nil
}

func (b *bgpSessions) collect(options *internalversion.ListOptions) (*livev1alpha1.BGPSessionList, store.Coverage) {
	now := time.Now()
	sessions, coverage := b.sources.Store.Sessions(now)
	list := &livev1alpha1.BGPSessionList{
		ListMeta: metav1.ListMeta{ResourceVersion: version(now)}, NodeAnswers: answersOf(coverage), Items: []livev1alpha1.BGPSession{},
	}
	for i := range sessions {
		made := sessionOf(&sessions[i])
		if selected(options, &made.ObjectMeta) {
			list.Items = append(list.Items, made)
		}
	}
	return list, coverage
}

func (b *bgpSessions) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	return watchItems(ctx, options, source[livev1alpha1.BGPSession]{
		every: watchEvery, generations: newGenerations(b.sources.Store),
		list: func() ([]livev1alpha1.BGPSession, string, error) {
			list, _ := b.collect(options)
			return list.Items, list.ResourceVersion, nil
		},
	}), nil
}

func answersOf(coverage store.Coverage) livev1alpha1.NodeAnswers {
	return livev1alpha1.NodeAnswers{Answered: coverage.Answered, Silent: coverage.Silent}
}

func sessionOf(session *store.Session) livev1alpha1.BGPSession {
	return livev1alpha1.BGPSession{
		TypeMeta: metav1.TypeMeta{APIVersion: livev1alpha1.GroupVersion.String(), Kind: "BGPSession"},
		ObjectMeta: metav1.ObjectMeta{
			Name: strings.ToLower(session.Node + "." + session.Peer),
		},
		Node: session.Node, Peer: session.Peer, Address: text(session.Address), LocalAddress: text(session.LocalAddress),
		State: session.State, Since: moment(session.Since), LastError: session.LastError,
		LastErrorTime: moment(session.LastErrorTime), Flaps: int64(session.Flaps), Families: session.Families,
		RoutesSent: int64(session.RoutesSent), UpdatesSent: int64(session.UpdatesSent),
		UpdatesReceived: int64(session.UpdatesReceived), Due: moment(session.Due), BFD: session.BFD, BFDMessage: session.BFDMessage,
	}
}

func text(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.String()
}

func moment(when time.Time) *metav1.Time {
	if when.IsZero() {
		return nil
	}
	return &metav1.Time{Time: when}
}
