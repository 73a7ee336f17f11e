// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/liveapi/internal/cluster"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

func TestNumber(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 0.04: "0", 0.05: "0.1", 3: "3", 9.96: "10", 12.34: "12.3", 99.95: "100", 123.4: "123", 9999: "9999", 10000: "10k",
		12345: "12.3k", 999499: "999k", 9.9994e6: "9999k", 1e7: "10M", 1.5e10: "15G", 2e13: "20T",
	} {
		if got := number(value); got != want {
			t.Errorf("%v is written %s, want %s", value, got, want)
		}
	}
}

func TestPartial(t *testing.T) {
	nodes := []string{}
	for i := range 12 {
		nodes = append(nodes, fmt.Sprintf("n%d", i))
	}
	for _, test := range []struct {
		silent []string
		want   string
	}{
		{nil, ""},
		{nodes[:1], "1 of 200 nodes did not answer: n0"},
		{nodes[:10], "10 of 200 nodes did not answer: n0, n1, n2, n3, n4, n5, n6, n7, n8, n9"},
		{nodes, "12 of 200 nodes did not answer: n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 more"},
	} {
		if got := partial(store.Coverage{Nodes: 200, Silent: test.silent}); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestNamesOfVIPs(t *testing.T) {
	for _, address := range []string{"198.51.100.1", "2001:db8::1"} {
		want := netip.MustParseAddr(address)
		if got, ok := addressOf(millracev1beta1.VIPName(want)); !ok || got != want {
			t.Errorf("%s: got %s", address, got)
		}
	}
	for _, name := range []string{"", "web", "2001:db8::1", "2001-db8--1"} {
		if got, ok := addressOf(name); ok {
			t.Errorf("%q is taken for %s", name, got)
		}
	}
	if got := objectName("TCP", "[2001:db8::1]:80", "fe80::1%eth0"); got != "tcp-2001-db8--1-80-fe80--1-eth0" {
		t.Errorf("the name is %s", got)
	}
}

func TestRanges(t *testing.T) {
	for want, ranges := range map[string][][2]int32{"": nil, "3": {{3, 3}}, "0-4,7,9-10": {{0, 4}, {7, 7}, {9, 10}}} {
		if got := rangesText(ranges); got != want {
			t.Errorf("%v are written %q, want %q", ranges, got, want)
		}
	}
}

// TestFrontends checks that frontends with traffic are listed even if they no longer belong to the Service.
func TestFrontends(t *testing.T) {
	address, other := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")
	service := &cluster.Service{
		Addresses: []netip.Addr{other, address}, Ports: []cluster.Port{{Number: 443, Protocol: "TCP"}, {Number: 80, Protocol: "TCP"}},
	}
	name := func(vip netip.Addr, port uint16) console.FrontendName {
		return console.FrontendName{VIP: vip, Port: port, Protocol: "TCP", Service: "shop/web"}
	}
	made := frontendsOf(service, []store.Frontend{
		{FrontendName: name(address, 22), Rates: store.Rates{Packets: 1}}, {FrontendName: name(other, 80), Rates: store.Rates{Packets: 2}},
	})
	var got []string
	for _, frontend := range made {
		got = append(got, fmt.Sprint(frontend.VIP, " ", frontend.Port, " ", frontend.Rates.Packets))
	}
	want := []string{"198.51.100.1 22 1", "198.51.100.1 80 0", "198.51.100.1 443 0", "2001:db8::1 80 2", "2001:db8::1 443 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := []map[string]int{{"a": 1, "b": 1}, nil, {"a": 1, "b": 2}, {"b": 2, "c": 1}}
		polled := polled{
			interval: time.Second, bookmark: func() runtime.Object { return &livev1alpha1.BGPSession{} },
			changedSince: func(version string) bool { return version == "1" },
			read: func(previous *snapshot) (*snapshot, error) {
				if len(looks) == 0 {
					return previous, nil
				}
				next := looks[0]
				looks = looks[1:]
				if next == nil {
					return previous, nil
				}
				found := newSnapshot("5")
				for _, name := range []string{"a", "b", "c"} {
					if flaps, ok := next[name]; ok {
						session := &livev1alpha1.BGPSession{ObjectMeta: metav1.ObjectMeta{Name: name}, Flaps: int64(flaps)}
						found.add(session, flaps)
					}
				}
				return found, nil
			},
		}
		all := slices.Clone(looks)
		for name, test := range map[string]struct {
			options internalversion.ListOptions
			want    []string
		}{
			"from nothing":  {internalversion.ListOptions{}, []string{"ADDED a", "ADDED b", "MODIFIED b", "DELETED a", "ADDED c"}},
			"from a list":   {internalversion.ListOptions{ResourceVersion: "2"}, []string{"MODIFIED b", "DELETED a", "ADDED c"}},
			"from long ago": {internalversion.ListOptions{ResourceVersion: "1"}, []string{"MODIFIED a", "MODIFIED b", "MODIFIED b", "DELETED a", "ADDED c"}},
			"as a list": {internalversion.ListOptions{SendInitialEvents: new(true)},
				[]string{"ADDED a", "ADDED b", "BOOKMARK ", "MODIFIED b", "DELETED a", "ADDED c"}},
		} {
			looks = slices.Clone(all)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			watched := startWatch(ctx, &test.options, polled)
			var got []string
			for event := range watched.ResultChan() {
				session, ok := event.Object.(*livev1alpha1.BGPSession)
				if !ok || session.ResourceVersion != "5" {
					t.Errorf("%s: %s %+v", name, event.Type, event.Object)
					continue
				}
				got = append(got, string(event.Type)+" "+session.Name)
			}
			cancel()
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: %q, want %q", name, got, test.want)
			}
		}
	})
}

// TestWatchIgnores checks that a change of an ignored field alone sends no event, and that the next event
// contains it.
func TestWatchIgnores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		watched := watchItems(ctx, nil, source[livev1alpha1.ServiceTraffic]{
			every:  time.Second,
			ignore: func(item *livev1alpha1.ServiceTraffic) { item.Window = metav1.Duration{} },
			list: func() ([]livev1alpha1.ServiceTraffic, string, error) {
				looks++
				item := livev1alpha1.ServiceTraffic{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
				item.Window.Duration, item.Endpoints.Ready = time.Duration(looks), int32(looks/5)
				return []livev1alpha1.ServiceTraffic{item}, fmt.Sprint(looks), nil
			},
		})
		var got []string
		for event := range watched.ResultChan() {
			item := event.Object.(*livev1alpha1.ServiceTraffic)
			got = append(got, fmt.Sprint(event.Type, " ", item.ResourceVersion, " ", int64(item.Window.Duration), " ", item.Endpoints.Ready))
		}
		if want := []string{"ADDED 1 1 0", "MODIFIED 5 5 1", "MODIFIED 10 10 2"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
