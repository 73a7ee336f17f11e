// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/relay"
)

func slice(name string, version uint64, addresses ...string) *discoveryv1.EndpointSlice {
	made := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: strconv.FormatUint(version, 10)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, address := range addresses {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return made
}

// agent reads the log in the same way as lbagent/internal/source/relay.
type agent struct {
	reader   *Reader
	known    map[types.NamespacedName]*discoveryv1.EndpointSlice
	received map[types.NamespacedName]bool
	version  uint64
}

func (a *agent) take(events [][]byte) error {
	for decoder := relay.NewDecoder(bytes.NewReader(bytes.Join(events, nil))); ; {
		event, err := decoder.Decode()
		if err != nil {
			return nil
		}
		if event.Type == relay.Bookmark {
			a.version = max(a.version, event.Version)
			continue
		}
		name := types.NamespacedName{Namespace: event.Slice.Namespace, Name: event.Slice.Name}
		switch event.Type {
		case relay.Put:
			a.known[name], a.received[name] = event.Slice, true
		case relay.Change:
			if !a.received[name] {
				return fmt.Errorf("a change of %s, which was not reported", name)
			}
			if event.Slice.Endpoints, err = relay.Apply(a.known[name].Endpoints, event.Slice.Endpoints, event.Runs); err != nil {
				return err
			}
			a.known[name] = event.Slice
		case relay.Delete:
			delete(a.known, name)
			delete(a.received, name)
		}
		version, _ := relay.ParseVersion(event.Slice.ResourceVersion)
		a.version = version
	}
}

// connect starts a new stream, either after the agent's version or with a snapshot.
func (a *agent) connect(l *Log, since bool) error {
	a.received = map[types.NamespacedName]bool{}
	reader, events, err := l.Open(relay.Request{Since: a.version, Snapshot: !since})
	if errors.Is(err, errExpired) {
		reader, events, err = l.Open(relay.Request{Since: a.version, Snapshot: true})
		since = false
	}
	if err != nil {
		return err
	}
	if !since {
		a.known = map[types.NamespacedName]*discoveryv1.EndpointSlice{}
	}
	a.reader = reader
	return a.take(events)
}

func (a *agent) read(some func(count int) int) error {
	events, _, err := a.reader.Next()
	if err != nil {
		return err
	}
	return a.take(events[:some(len(events))])
}

// TestAgentsHaveServerState checks that after any changes and reconnections, agents have the slices of the
// API server.
func TestAgentsHaveServerState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, server, version := &Log{}, map[string]*discoveryv1.EndpointSlice{}, uint64(10)
		list := func() {
			var all []*discoveryv1.EndpointSlice
			for _, one := range server {
				all = append(all, one)
			}
			must(t, l.Replace(all, strconv.FormatUint(version, 10)))
		}
		list()
		agents := []*agent{{}, {}, {}}
		for _, a := range agents {
			must(t, a.connect(l, false))
		}
		name := rapid.SampledFrom([]string{"web", "dns", "api"})
		addresses := rapid.SliceOfN(rapid.StringMatching("198\\.18\\.0\\.[1-9]"), 0, 5)
		// Without an event, the relay learns of the change from the next list only.
		change := func(sendAll bool) {
			version++
			which := name.Draw(t, "slice")
			if rapid.IntRange(0, 3).Draw(t, "delete") == 0 && server[which] != nil {
				gone := slice(which, version)
				delete(server, which)
				if sendAll {
					must(t, l.Delete(gone))
				}
				return
			}
			server[which] = slice(which, version, addresses.Draw(t, "endpoints")...)
			if sendAll {
				must(t, l.Put(server[which]))
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			a := rapid.SampledFrom(agents).Draw(t, "agent")
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				change(true)
			case 2:
				for range rapid.IntRange(0, 3).Draw(t, "unseen") {
					change(false)
				}
				// The version of the list may be that of the latest change.
				version += uint64(rapid.IntRange(0, 1).Draw(t, "later"))
				list()
			case 3:
				version++
				must(t, l.Bookmark(strconv.FormatUint(version, 10)))
			case 4:
				must(t, a.read(func(count int) int { return rapid.IntRange(0, count).Draw(t, "read") }))
				must(t, a.connect(l, true))
			case 5:
				must(t, a.read(func(count int) int { return count }))
			}
		}
		for i, a := range agents {
			must(t, a.read(func(count int) int { return count }))
			if len(a.known) != len(server) {
				t.Fatalf("agent %d has %d slices, want %d", i, len(a.known), len(server))
			}
			for name, want := range server {
				got := a.known[types.NamespacedName{Namespace: "shop", Name: name}]
				if got == nil || !equality.Semantic.DeepEqual(got, relay.Slim(want)) {
					t.Fatalf("agent %d has %v, want %v", i, got, want)
				}
			}
		}
	})
}

func must(t interface{ Fatal(...any) }, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func TestChangeIsShort(t *testing.T) {
	l := &Log{}
	must(t, l.Replace(nil, "1"))
	var addresses []string
	for i := range 100 {
		addresses = append(addresses, fmt.Sprintf("198.18.1.%d", i))
	}
	must(t, l.Put(slice("web", 2, addresses...)))
	a := &agent{}
	must(t, a.connect(l, false))
	addresses[40] = "198.18.2.40"
	must(t, l.Put(slice("web", 3, addresses...)))
	events, _, err := a.reader.Next()
	must(t, err)
	whole, err := relay.Encode(nil, &relay.Event{Type: relay.Put, Slice: relay.Slim(slice("web", 3, addresses...))})
	must(t, err)
	if size := len(events[0]); len(events) != 1 || size*10 > len(whole) {
		t.Errorf("%d events, the first of %d bytes; the slice has %d", len(events), size, len(whole))
	}
}

// TestRefused checks that a relay rejects agents with a later version than its own, or with one whose changes
// it no longer has.
func TestRefused(t *testing.T) {
	l := &Log{}
	open := func(request relay.Request, want error) {
		t.Helper()
		if _, _, err := l.Open(request); !errors.Is(err, want) {
			t.Errorf("%+v: the error is %v, want %v", request, err, want)
		}
	}
	open(relay.Request{Snapshot: true}, errNotReady)
	must(t, l.Replace(nil, "10"))
	open(relay.Request{Since: 11, Snapshot: true}, errAhead)
	open(relay.Request{Since: 9}, errExpired)
	// A list may not contain all changes up to its version.
	open(relay.Request{Since: 10}, errExpired)
	must(t, l.Bookmark("11"))
	open(relay.Request{Since: 11}, nil)
	reader, _, err := l.Open(relay.Request{Since: 11})
	must(t, err)
	for i := range uint64(40) {
		must(t, l.Put(slice("web", 12+i, strings.Repeat("a", 1<<20))))
	}
	open(relay.Request{Since: 12}, errExpired)
	open(relay.Request{Since: 50}, nil)
	if l.size > maxLog {
		t.Errorf("%d bytes are retained, want at most %d", l.size, maxLog)
	}
	if _, _, err := reader.Next(); !errors.Is(err, errExpired) {
		t.Errorf("a slow reader gets %v, want %v", err, errExpired)
	}
	if err := l.Put(slice("web", 60, strings.Repeat("a", 8<<20))); err == nil {
		t.Error("a slice of 8 MiB is taken")
	}
}

// TestDecreasingVersions checks that no stream continues if the API server's versions decrease, for example
// after a restore.
func TestDecreasingVersions(t *testing.T) {
	l, a := &Log{}, &agent{}
	must(t, l.Replace(nil, "100"))
	must(t, l.Put(slice("web", 101, "198.18.0.1")))
	must(t, a.connect(l, false))
	must(t, l.Replace([]*discoveryv1.EndpointSlice{slice("dns", 40, "198.18.0.2")}, "50"))
	if _, _, err := a.reader.Next(); !errors.Is(err, errExpired) {
		t.Errorf("a stream from before continues: %v, want %v", err, errExpired)
	}
	if _, _, err := l.Open(relay.Request{Since: a.version}); !errors.Is(err, errAhead) {
		t.Errorf("an agent with a newer version gets %v, want %v", err, errAhead)
	}
	fresh := &agent{}
	must(t, fresh.connect(l, false))
	if len(fresh.known) != 1 || fresh.version != 50 {
		t.Errorf("an agent without state has %d slices at version %d, want one at 50", len(fresh.known), fresh.version)
	}
	must(t, l.Put(slice("dns", 51, "198.18.0.3")))
	must(t, fresh.read(func(count int) int { return count }))
	if got := fresh.known[types.NamespacedName{Namespace: "shop", Name: "dns"}]; got == nil || got.Endpoints[0].Addresses[0] != "198.18.0.3" {
		t.Errorf("the slice is %v, want that of version 51", got)
	}
}

func TestCutOff(t *testing.T) {
	l, start := &Log{}, time.Now()
	must(t, l.Replace(nil, "10"))
	l.Connected(false, start)
	l.Connected(false, start.Add(time.Minute))
	if err := l.Ready(start); err != nil {
		t.Errorf("the reader is disconnected at once: %v", err)
	}
	if err := l.Ready(start.Add(time.Second)); !errors.Is(err, errCut) {
		t.Errorf("after a second the error is %v, want %v", err, errCut)
	}
	l.Connected(true, start)
	if err := l.Ready(start.Add(time.Hour)); err != nil {
		t.Errorf("the reader is reconnected: %v", err)
	}
}
