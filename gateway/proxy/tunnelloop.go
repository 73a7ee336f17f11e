// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"sync"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/hello"
)

// tunnelLoops finds tunnels that lead back to this proxy, through a VIP of ours. Each round of such a loop
// would be one more connection, until the client's share of the memory is used. Bytes that are passed on
// have no room for a count of hops, but they begin as no other connection does: with the random value of a
// client. The zero value is ready.
type tunnelLoops struct {
	mutex sync.Mutex
	// open is how many tunnels there are that begin with the same bytes. Each of a fleet's proxies
	// counts its own.
	open map[hello.Mark]int
	// made are the TLS connections that tunnels of this proxy have begun anew, with the places where their
	// bytes were taken before. That of another proxy of the fleet is not known: a loop through several ends
	// when one reaches itself.
	made map[hello.Mark][]string
}

// enter takes note of a tunnel at a place: a listener and a host name. It reports false where it is a loop.
// The tunnel ends with leave.
func (l *tunnelLoops) enter(mark hello.Mark, place string) (path []string, leave func(), ok bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	path = l.made[mark]
	if l.open[mark] >= maxHops || len(path) >= maxHops || slices.Contains(path, place) {
		return nil, nil, false
	}
	if l.open == nil {
		l.open = map[hello.Mark]int{}
	}
	l.open[mark]++
	return append(slices.Clip(path), place), func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		if l.open[mark]--; l.open[mark] == 0 {
			delete(l.open, mark)
		}
	}, true
}

// began takes note of what a connection begins with that a tunnel makes, until its end.
func (l *tunnelLoops) began(begin []byte, path []string) (end func()) {
	var mark hello.Mark
	copy(mark[:], begin)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.made == nil {
		l.made = map[hello.Mark][]string{}
	}
	l.made[mark] = path
	return func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		delete(l.made, mark)
	}
}
