// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
)

type deciding struct {
	sync.Mutex
	time     time.Time
	vips     map[netip.Addr]console.VIPGroup
	sessions []console.BGPPeer
	err      error
}

func (d *deciding) decisions(at time.Time) (*console.VIPs, error) {
	d.Lock()
	defer d.Unlock()
	if d.err != nil || !d.time.After(at) {
		return nil, d.err
	}
	told := &console.VIPs{Time: d.time}
	for address, group := range d.vips {
		group.Addresses = []netip.Addr{address}
		told.Groups = append(told.Groups, group)
	}
	return told, nil
}

func (d *deciding) peers() []console.BGPPeer { return slices.Clone(d.sessions) }

type follower struct {
	cursor   string
	vips     map[netip.Addr]string
	sessions []console.BGPPeer
}

func (f *follower) ask(t *testing.T, j *journal) *liveapi.State {
	t.Helper()
	state, err := j.wait(t.Context(), f.cursor)
	if err != nil {
		t.Fatal(err)
	}
	f.cursor = state.Cursor
	if state.Whole {
		f.vips, f.sessions = map[netip.Addr]string{}, nil
	}
	if state.Sessions != nil {
		f.sessions = state.Sessions
	}
	for _, group := range state.VIPs {
		for _, address := range group.Addresses {
			f.vips[address] = decided(group)
		}
	}
	for _, address := range state.Gone {
		delete(f.vips, address)
	}
	return state
}

func decided(group console.VIPGroup) string {
	return group.Reason + ": " + group.Message + strings.Join(group.Peers, ",")
}

func (f *follower) check(t *testing.T, d *deciding) {
	t.Helper()
	want := map[netip.Addr]string{}
	for address, group := range d.vips {
		want[address] = decided(group)
	}
	if !reflect.DeepEqual(f.vips, want) {
		t.Errorf("after the changes: VIPs %v, want %v", f.vips, want)
	}
	if !slices.EqualFunc(f.sessions, d.sessions, func(a, b console.BGPPeer) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("after the changes: sessions %v, want %v", f.sessions, d.sessions)
	}
}

// TestState checks that readers that apply the differences have the node's decisions at any time.
func TestState(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkState(t, rand.New(rand.NewPCG(seed, 2))) })
		})
	}
}

func checkState(t *testing.T, random *rand.Rand) {
	d := &deciding{time: time.Now(), vips: map[netip.Addr]console.VIPGroup{}}
	j := newJournal(d.decisions, d.peers)
	groups := []console.VIPGroup{
		{Peers: []string{"tor1"}}, {Peers: []string{"tor1", "tor2"}}, {Reason: "NoEndpoints", Message: "none is ready"},
	}
	followers := make([]follower, 3)
	for range 60 {
		for range 1 + random.IntN(4) {
			address := netip.AddrFrom4([4]byte{203, 0, 113, byte(random.IntN(12))})
			if choice := random.IntN(len(groups) + 1); choice < len(groups) {
				d.vips[address] = groups[choice]
			} else {
				delete(d.vips, address)
			}
		}
		if random.IntN(4) == 0 {
			d.sessions = nil
			for i := range random.IntN(3) {
				d.sessions = append(d.sessions, console.BGPPeer{Peer: fmt.Sprint("tor", i), Flaps: random.Uint64N(5)})
			}
		}
		time.Sleep(time.Millisecond)
		d.time = time.Now()
		for i := range followers {
			if random.IntN(i+1) == 0 {
				followers[i].ask(t, j)
				followers[i].check(t, d)
			}
		}
	}
	for i := range followers {
		followers[i].ask(t, j)
		followers[i].check(t, d)
	}
}

// TestStateOfChanges checks that a response contains only changes, and waits for one.
func TestStateOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deciding{time: time.Now(), vips: map[netip.Addr]console.VIPGroup{}, sessions: []console.BGPPeer{{Peer: "tor1"}}}
		for i := range 200 {
			d.vips[netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})] = console.VIPGroup{Peers: []string{"tor1"}}
		}
		j := newJournal(d.decisions, d.peers)
		var f follower
		if first := f.ask(t, j); !first.Whole || len(first.VIPs) != 1 || len(first.VIPs[0].Addresses) != 200 {
			t.Fatalf("first response %+v, want all VIPs in one group", first)
		}
		begin := time.Now()
		if same := f.ask(t, j); same.Whole || len(same.VIPs) > 0 || same.Sessions != nil || time.Since(begin) < liveapi.WaitLimit {
			t.Errorf("without a change: %+v after %s, want an empty response after %s", same, time.Since(begin), liveapi.WaitLimit)
		}
		changed := netip.MustParseAddr("203.0.113.7")
		go func() {
			time.Sleep(10 * time.Second)
			d.Lock()
			defer d.Unlock()
			d.vips[changed] = console.VIPGroup{Reason: "Withheld"}
			d.time = time.Now()
		}()
		begin = time.Now()
		state := f.ask(t, j)
		want := []console.VIPGroup{{Reason: "Withheld", Addresses: []netip.Addr{changed}}}
		if state.Whole || state.Sessions != nil || !reflect.DeepEqual(state.VIPs, want) {
			t.Errorf("after one change: %+v, want %+v", state, want)
		}
		if waited := time.Since(begin); waited < 10*time.Second || waited > 12*time.Second {
			t.Errorf("a change after 10 s was reported after %s", waited)
		}
	})
}

// TestJournalDropsRemovedVIPs checks that removed VIPs are eventually dropped from the journal, and that a
// slow reader receives the whole state.
func TestJournalDropsRemovedVIPs(t *testing.T) {
	d := &deciding{time: time.Now(), vips: map[netip.Addr]console.VIPGroup{netip.MustParseAddr("203.0.113.1"): {}}}
	j := newJournal(d.decisions, d.peers)
	var late, prompt follower
	late.ask(t, j)
	turn := func(n int) {
		clear(d.vips)
		for i := range maxRemoved + 1 {
			d.vips[netip.AddrFrom4([4]byte{203, byte(n), byte(i >> 8), byte(i)})] = console.VIPGroup{}
		}
		d.time = d.time.Add(1)
	}
	for n := range 3 {
		turn(n)
		prompt.ask(t, j)
		prompt.check(t, d)
	}
	if state := late.ask(t, j); !state.Whole {
		t.Error("a slow reader receives changes although some were dropped")
	}
	late.check(t, d)
	if len(j.removed) > maxRemoved {
		t.Errorf("%d removed VIPs are retained, limit %d", len(j.removed), maxRemoved)
	}
}

func TestStateBeforeFirstPass(t *testing.T) {
	d := &deciding{err: errors.New("no pass yet")}
	if _, err := newJournal(d.decisions, d.peers).wait(t.Context(), ""); !errors.Is(err, d.err) {
		t.Errorf("error %v, want %v", err, d.err)
	}
}
