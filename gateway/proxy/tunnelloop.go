// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"sync"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/clienthello"
)

// tunnelLoops detects tunnels that lead back to this proxy through one of its VIPs. Each round of such a
// loop would add a connection until the client's memory limit is reached. A byte stream cannot carry a hop
// count, but is identified by the random value in its ClientHello. The zero value is ready to use.
type tunnelLoops struct {
	mutex sync.Mutex
	// open counts the tunnels with the same ClientHello. Each proxy counts its own.
	open map[clienthello.ID]int
	// originated maps TLS connections opened by tunnels of this proxy to the places visited before. Those
	// of other proxies are unknown: a loop through several proxies ends when one of them reaches itself.
	originated map[clienthello.ID][]string
}

// enter records a tunnel at a place, a listener and hostname, until leave. ok is false for a loop.
func (l *tunnelLoops) enter(mark clienthello.ID, place string) (path []string, leave func(), ok bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	path = l.originated[mark]
	if l.open[mark] >= maxHops || len(path) >= maxHops || slices.Contains(path, place) {
		return nil, nil, false
	}
	if l.open == nil {
		l.open = map[clienthello.ID]int{}
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

// began records the ClientHello of an originated TLS connection until end.
func (l *tunnelLoops) began(begin []byte, path []string) (end func()) {
	var mark clienthello.ID
	copy(mark[:], begin)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.originated == nil {
		l.originated = map[clienthello.ID][]string{}
	}
	l.originated[mark] = path
	return func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		delete(l.originated, mark)
	}
}
