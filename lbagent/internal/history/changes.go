// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// State is the state of a node at one time. It must not be modified.
type State struct {
	Time      time.Time
	Model     *model.Model
	Decisions []announce.Decision
	Sessions  []Session
	// Down are the nodes that do not answer probes. CutOff is true if this node is cut off.
	Down     map[forwarding.NodeID]bool
	CutOff   bool
	Problems []Problem
}

// Session is a BGP session with its BFD session.
type Session struct {
	Peer        string
	Address     netip.Addr
	Established bool
	Since       time.Time
	Flaps       uint64
	Message     string
	// BFD is the state of the BFD session, such as Up, or empty without one.
	BFD, BFDMessage string
}

// Problem is a message about a Service or the node.
type Problem struct {
	Service string
	Text    string
}

const (
	listed      = 32
	maxProblems = 256
	maxMessage  = 300
	// failingEvery is the minimum time between two entries about a session that is not established.
	failingEvery = time.Minute
)

// Entry is a line of the history.
type Entry = consoleapi.HistoryEntry

type changes struct {
	before  *State
	failing map[peerKey]failure
}

type peerKey struct {
	peer    string
	address netip.Addr
}

type failure struct {
	at      time.Time
	message string
}

// diff returns the changes since the previous State. For the first State these are the announced VIPs and
// the problems: endpoints and nodes are assumed to be unchanged.
func (c *changes) diff(now *State) []Entry {
	before := c.before
	c.before = now
	first := before == nil
	if first {
		before = &State{Model: now.Model}
		c.failing = map[peerKey]failure{}
	}
	entries := c.sessions(before, now)
	entries = append(entries, nodes(before, now)...)
	entries = append(entries, problems(before, now)...)
	entries = append(entries, routes(before, now)...)
	return append(entries, endpoints(before, now)...)
}

func (c *changes) sessions(before, now *State) []Entry {
	previous := map[peerKey]*Session{}
	for i := range before.Sessions {
		previous[before.Sessions[i].key()] = &before.Sessions[i]
	}
	var entries []Entry
	for i := range now.Sessions {
		session := &now.Sessions[i]
		entries = append(entries, c.session(previous[session.key()], session, now.Time)...)
		delete(previous, session.key())
	}
	for _, key := range slices.SortedFunc(maps.Keys(previous), peerKey.compare) {
		delete(c.failing, key)
		entries = append(entries, sessionEntry(previous[key], now.Time, "Removed", ""))
	}
	return entries
}

func (s *Session) key() peerKey { return peerKey{s.Peer, s.Address} }

func (k peerKey) compare(other peerKey) int {
	return cmp.Or(cmp.Compare(k.peer, other.peer), k.address.Compare(other.address))
}

// session compares one session. A session lost and established again between two states counts as lost.
func (c *changes) session(before, now *Session, at time.Time) (entries []Entry) {
	if before == nil {
		before = &Session{}
	}
	lost := before.Established && (!now.Established || now.Flaps > before.Flaps)
	switch {
	case lost && !now.Established:
		entries = append(entries, sessionEntry(now, orNow(now.Since, at), "Lost", now.Message))
		c.failing[now.key()] = failure{at, now.Message}
	case lost:
		entries = append(entries, sessionEntry(now, orNow(now.Since, at), "Lost", now.Message))
		fallthrough
	case now.Established && !before.Established:
		entries = append(entries, sessionEntry(now, orNow(now.Since, at), "Established", ""))
		delete(c.failing, now.key())
	case !now.Established && now.Message != "":
		if last := c.failing[now.key()]; last.message != now.Message && at.Sub(last.at).Abs() >= failingEvery {
			entries = append(entries, sessionEntry(now, at, "Failing", now.Message))
			c.failing[now.key()] = failure{at, now.Message}
		}
	}
	if up := now.BFD == bfdUp; up != (before.BFD == bfdUp) {
		what := "BFDDown"
		if up {
			what = "BFDUp"
		}
		entries = append(entries, sessionEntry(now, at, what, now.BFDMessage))
	}
	return entries
}

const bfdUp = "Up"

func orNow(at, now time.Time) time.Time {
	if at.IsZero() {
		return now
	}
	return at
}

func sessionEntry(session *Session, at time.Time, what, message string) Entry {
	return Entry{Time: at, Kind: consoleapi.HistorySession, What: what, Names: []string{session.Peer}, Message: shortened(message)}
}

func shortened(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return message[:maxMessage] + "…"
}

func nodes(before, now *State) []Entry {
	groups := map[string][]string{}
	previous := map[string]model.Node{}
	for i := range before.Model.Nodes {
		previous[before.Model.Nodes[i].Name] = before.Model.Nodes[i]
	}
	for i := range now.Model.Nodes {
		node := &now.Model.Nodes[i]
		old, was := previous[node.Name]
		delete(previous, node.Name)
		if !was {
			groups["Added"] = append(groups["Added"], node.Name)
		}
		if down := now.Down[node.ID]; down != before.Down[node.ID] {
			what := "Up"
			if down {
				what = "Down"
			}
			groups[what] = append(groups[what], node.Name)
		}
		if node.Draining != old.Draining {
			what := "DrainEnded"
			if node.Draining != "" {
				what = "Draining/" + string(node.Draining)
			}
			groups[what] = append(groups[what], node.Name)
		}
	}
	groups["Removed"] = slices.Sorted(maps.Keys(previous))
	var entries []Entry
	for _, what := range slices.Sorted(maps.Keys(groups)) {
		entry := Entry{Time: now.Time, Kind: consoleapi.HistoryNode}
		entry.What, entry.Message = cutReason(what)
		for names := range slices.Chunk(groups[what], listed) {
			entry.Names = names
			entries = append(entries, entry)
		}
	}
	if now.CutOff != before.CutOff {
		what := "Rejoined"
		if now.CutOff {
			what = "Isolated"
		}
		entries = append(entries, Entry{Time: now.Time, Kind: consoleapi.HistoryNode, What: what})
	}
	return entries
}

func problems(before, now *State) []Entry {
	had, have := problemSet(before), problemSet(now)
	var entries []Entry
	add := func(what string, problem Problem) {
		entry := Entry{Time: now.Time, Kind: consoleapi.HistoryNode, What: what, Message: shortened(problem.Text)}
		if problem.Service != "" {
			entry.Services = []string{problem.Service}
		}
		entries = append(entries, entry)
	}
	order := func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Text, b.Text))
	}
	for _, problem := range slices.SortedFunc(maps.Keys(have), order) {
		if !had[problem] {
			add("Problem", problem)
		}
	}
	for _, problem := range slices.SortedFunc(maps.Keys(had), order) {
		if !have[problem] {
			add("Resolved", problem)
		}
	}
	return entries
}

func problemSet(state *State) map[Problem]bool {
	set := map[Problem]bool{}
	for _, problem := range state.Problems[:min(len(state.Problems), maxProblems)] {
		set[problem] = true
	}
	return set
}

func cutReason(what string) (string, string) {
	word, reason, _ := strings.Cut(what, "/")
	return word, reason
}
