// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"net/netip"
	"sync"
	"time"
)

// portRest is how long the kernel keeps the port of a connection that it has closed first
// (TIME_WAIT). Until then the port leads nowhere else at the same endpoint.
const portRest = 60 * time.Second

// Singles bounds the connections to an endpoint that serve one client each and no other request:
// upgrades, requests with Expect, and tunnels. Whoever opens and closes them could take all ports
// that this pod has for the endpoint, or all requests that the endpoint may have. A client has half
// of what there is at most. The zero value is ready.
type Singles struct {
	mutex sync.Mutex
	// open are those that count as requests, of each client and of all; ports those that have a port,
	// also after their end.
	open, ports tally
	// resting are the ports of connections that have ended, in the order of their end.
	resting []rest
}

// rest is a port that is free again at a time.
type rest struct {
	client netip.Addr
	until  time.Time
}

// tally is a count by client. What cannot be told apart is of the zero address, and has no limit of its own.
type tally struct {
	all int
	of  map[netip.Addr]int
}

// has reports whether there is room for one more; most is for all, 0 is no limit.
func (c *tally) has(client netip.Addr, most int) bool {
	return most <= 0 || c.all < most && (!client.IsValid() || c.of[client] < max(most/2, 1))
}

func (c *tally) add(client netip.Addr) {
	if c.of == nil {
		c.of = map[netip.Addr]int{}
	}
	c.all++
	c.of[client]++
}

func (c *tally) less(client netip.Addr) {
	c.all--
	if c.of[client]--; c.of[client] == 0 {
		delete(c.of, client)
	}
}

// TakeSingle takes room for a connection of a client, whose address is zero where many share it. It is
// to be given back by end; rests says that its port is used for a while longer. request says that the
// connection is one of the requests that the endpoint may have: half of these at most are single.
func (e *Endpoint) TakeSingle(client netip.Addr, request bool, now time.Time) (end func(rests bool, now time.Time), ok bool) {
	s := &e.singles
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.expire(now)
	if !s.ports.has(client, e.settings.MaxPorts) || request && !s.open.has(client, int(e.settings.MaxRequests/2)) {
		return nil, false
	}
	s.ports.add(client)
	if request {
		s.open.add(client)
	}
	return func(rests bool, now time.Time) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		if request {
			s.open.less(client)
		}
		if rests {
			s.resting = append(s.resting, rest{client, now.Add(portRest)})
		} else {
			s.ports.less(client)
		}
	}, true
}

// expire gives back the ports that are free.
func (s *Singles) expire(now time.Time) {
	expired := 0
	for expired < len(s.resting) && !s.resting[expired].until.After(now) {
		s.ports.less(s.resting[expired].client)
		expired++
	}
	if expired == len(s.resting) {
		s.resting = nil
	} else {
		s.resting = s.resting[expired:]
	}
}
