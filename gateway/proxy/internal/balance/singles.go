// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"net/netip"
	"sync"
	"time"
)

// timeWait is the kernel's TIME_WAIT. Until it ends, the local port cannot be reused for the same endpoint.
const timeWait = 60 * time.Second

// Singles limits connections to an endpoint for one upgrade or tunnel, which could exhaust
// its local ports or requests. A client may use half of each limit. The zero value is ready to use.
type Singles struct {
	mutex sync.Mutex
	// open counts connections that count as requests, ports counts local ports, including those in TIME_WAIT.
	open, ports tally
	// inTimeWait is in order of expiry.
	inTimeWait []usedPort
}

type usedPort struct {
	client netip.Addr
	until  time.Time
}

// tally counts per client. The zero address stands for indistinguishable clients without a limit of their own.
type tally struct {
	all int
	of  map[netip.Addr]int
}

// has reports whether there is room; most is the total limit, 0 is unlimited.
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

// TakeSingle reserves a connection; the address is zero for a shared one. The caller must call end; rests
// reports whether the port enters TIME_WAIT. request counts it as a request, as half of the endpoint's may be.
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
			s.inTimeWait = append(s.inTimeWait, usedPort{client, now.Add(timeWait)})
		} else {
			s.ports.less(client)
		}
	}, true
}

func (s *Singles) expire(now time.Time) {
	expired := 0
	for expired < len(s.inTimeWait) && !s.inTimeWait[expired].until.After(now) {
		s.ports.less(s.inTimeWait[expired].client)
		expired++
	}
	if expired == len(s.inTimeWait) {
		s.inTimeWait = nil
	} else {
		s.inTimeWait = s.inTimeWait[expired:]
	}
}
