// SPDX-License-Identifier: Apache-2.0

package membership

import "time"

const (
	// windowSize is the number of probes after which the loss of a path is computed.
	windowSize = 200
	// lossyFrom (5 %) and losslessTo (2 %) are the numbers of lost probes in a window at which a path
	// becomes lossy and lossless.
	lossyFrom, losslessTo = windowSize / 20, windowSize / 50
)

type window struct {
	sent, answered int
	// lossy is the time since which the path loses packets; zero if it does not.
	lossy time.Time
}

func (w *window) send(now time.Time) {
	if w.sent == windowSize {
		switch lost := w.sent - w.answered; {
		case lost >= lossyFrom && w.lossy.IsZero():
			w.lossy = now
		case lost <= losslessTo:
			w.lossy = time.Time{}
		}
		w.sent, w.answered = 0, 0
	}
	w.sent++
}

// lossy returns the time since which this node's own link loses packets: more than half of the paths to
// answering nodes are lossy. A single lossy path may be the other node's fault.
func (m *Membership) lossy() (since time.Time) {
	paths, lossy := 0, 0
	for _, p := range m.peers {
		if !p.seen || p.lost {
			continue
		}
		paths++
		if at := p.loss.lossy; !at.IsZero() {
			lossy++
			if since.IsZero() || at.Before(since) {
				since = at
			}
		}
	}
	if 2*lossy <= paths {
		return time.Time{}
	}
	return since
}
