// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"sync"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/clienthello"
)

// tunnelLoops detects tunnels that lead back to this proxy, by the random value in the ClientHello. Each
// round of a loop would add a connection until the client's memory limit. The zero value is ready to use.
type tunnelLoops struct {
	mutex sync.Mutex
	// open counts this proxy's tunnels with the same ClientHello.
	open map[clienthello.ID]int
	// visited maps TLS connections of this proxy to the places visited before. A loop through several proxies
	// ends when one of them reaches itself.
	visited map[clienthello.ID][]string
}

// enter records a tunnel at a place, a listener and hostname, until leave. ok is false for a loop.
func (l *tunnelLoops) enter(mark clienthello.ID, place string) (path []string, leave func(), ok bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	path = l.visited[mark]
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

func (l *tunnelLoops) began(begin []byte, path []string) (end func()) {
	var mark clienthello.ID
	copy(mark[:], begin)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.visited == nil {
		l.visited = map[clienthello.ID][]string{}
	}
	l.visited[mark] = path
	return func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		delete(l.visited, mark)
	}
}
