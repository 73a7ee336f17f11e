// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
)

const (
	// pollInterval is the interval for reading the state while a request waits for a change.
	pollInterval = time.Second
	// maxRemoved is the maximum number of removed VIPs in the journal. Beyond that, readers get the whole
	// state.
	maxRemoved = 4096
)

type journal struct {
	// vips returns nil if the decisions are not later than at.
	vips     func(at time.Time) (*console.VIPs, error)
	sessions func() []console.BGPPeer

	mu     sync.Mutex
	epoch  string
	number int
	at     time.Time
	// decided are the current VIPs, gone the numbers at which others were removed. forgotten is the last
	// number whose removals may be incomplete.
	decided   map[netip.Addr]decision
	removed   map[netip.Addr]int
	forgotten int
	peers     []console.BGPPeer
	changed   int
}

type decision struct {
	group *console.VIPGroup
	key   string
	since int
}

func newJournal(vips func(at time.Time) (*console.VIPs, error), sessions func() []console.BGPPeer) *journal {
	return &journal{vips: vips, sessions: sessions, decided: map[netip.Addr]decision{}, removed: map[netip.Addr]int{}}
}

func (j *journal) poll() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	vips, err := j.vips(j.at)
	if err != nil {
		return err
	}
	sessions := j.sessions()
	if j.epoch == "" {
		j.epoch = fmt.Sprintf("%x", time.Now().UnixNano())
	}
	next := j.number + 1
	changed := false
	if vips != nil {
		j.at = vips.Time
		changed = j.decide(vips.Groups, next)
	}
	if !reflect.DeepEqual(sessions, j.peers) {
		j.peers, j.changed = sessions, next
		changed = true
	}
	if changed {
		j.number = next
	}
	return nil
}

func (j *journal) decide(groups []console.VIPGroup, next int) (changed bool) {
	there := 0
	for i := range groups {
		// A copy, because the entry outlives the list of addresses.
		group := &console.VIPGroup{Peers: groups[i].Peers, Reason: groups[i].Reason, Message: groups[i].Message}
		key := strings.Join(append([]string{group.Reason, group.Message}, group.Peers...), "\x00")
		for _, address := range groups[i].Addresses {
			there++
			if before, known := j.decided[address]; !known || before.key != key {
				j.decided[address] = decision{group: group, key: key, since: next}
				delete(j.removed, address)
				changed = true
			}
		}
	}
	if there == len(j.decided) {
		return changed
	}
	present := make(map[netip.Addr]bool, there)
	for i := range groups {
		for _, address := range groups[i].Addresses {
			present[address] = true
		}
	}
	for address := range j.decided {
		if !present[address] {
			delete(j.decided, address)
			j.removed[address] = next
		}
	}
	if len(j.removed) > maxRemoved {
		clear(j.removed)
		j.forgotten = next
	}
	return true
}

// wait waits for a difference to the cursor, at most for liveapi.WaitLimit, and returns it. With an
// unknown cursor it returns the whole state immediately.
func (j *journal) wait(ctx context.Context, cursor string) (*liveapi.State, error) {
	ctx, cancel := context.WithTimeout(ctx, liveapi.WaitLimit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if err := j.poll(); err != nil {
			return nil, err
		}
		state, same := j.changesSince(cursor)
		if !same {
			return state, nil
		}
		select {
		case <-ctx.Done():
			return state, nil
		case <-ticker.C:
		}
	}
}

func (j *journal) changesSince(cursor string) (state *liveapi.State, same bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	number, known := parseCursor(cursor, j.epoch)
	state = &liveapi.State{Cursor: formatCursor(j.epoch, j.number)}
	// Only a whole state shows that no session remains.
	last := j.changed > number && len(j.peers) == 0
	if state.Whole = !known || number < j.forgotten || number > j.number || last; state.Whole {
		number = -1
	}
	if number == j.number {
		return state, true
	}
	if j.changed > number {
		state.Sessions = slices.Clone(j.peers)
	}
	groups := map[string]int{}
	for address, decision := range j.decided {
		if decision.since <= number {
			continue
		}
		at, known := groups[decision.key]
		if !known {
			at = len(state.VIPs)
			groups[decision.key] = at
			state.VIPs = append(state.VIPs, *decision.group)
		}
		state.VIPs[at].Addresses = append(state.VIPs[at].Addresses, address)
	}
	if !state.Whole {
		for address, since := range j.removed {
			if since > number {
				state.Gone = append(state.Gone, address)
			}
		}
		slices.SortFunc(state.Gone, netip.Addr.Compare)
	}
	for i := range state.VIPs {
		slices.SortFunc(state.VIPs[i].Addresses, netip.Addr.Compare)
	}
	slices.SortFunc(state.VIPs, func(a, b console.VIPGroup) int { return a.Addresses[0].Compare(b.Addresses[0]) })
	return state, false
}
