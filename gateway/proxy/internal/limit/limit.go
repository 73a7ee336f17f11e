// SPDX-License-Identifier: Apache-2.0

// Package limit implements rate and concurrency limits per client.
package limit

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"go4.org/netipx"
	"golang.org/x/time/rate"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/access"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/lru"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Rule is an immutable limit per client. It may be shared.
type Rule struct {
	zone string
	// every is rate.Inf without a rate limit.
	every rate.Limit
	burst int
	// concurrent is the maximum of concurrent requests; 0 is unlimited.
	concurrent int
	// Status is the status code of rejected requests.
	Status int
	exempt *netipx.IPSet
}

// New parses a limit. zone is the default zone.
func New(from *resource.ClientLimit, zone string) (*Rule, error) {
	exempt, err := access.Set(from.GetExempt())
	if err != nil {
		return nil, fmt.Errorf("exempt: %w", err)
	}
	r := &Rule{
		every: rate.Inf, burst: max(int(from.GetBurst()), 1), concurrent: int(from.GetConcurrent()),
		Status: int(from.GetStatus()), exempt: exempt,
	}
	if r.Status == 0 {
		r.Status = 503
	}
	switch {
	case r.Status < 400 || r.Status > 599:
		return nil, fmt.Errorf("status %d is not 400 to 599", r.Status)
	case from.GetRequests() > 0 && from.GetPeriod() == 0:
		return nil, errors.New("requests without a period")
	case from.GetRequests() == 0 && from.GetConcurrent() == 0:
		return nil, errors.New("neither requests nor concurrent is set")
	case from.GetRequests() > 0:
		// Computed as float to avoid overflow for long periods.
		r.every = rate.Limit(float64(from.GetRequests()) / (float64(from.GetPeriod()) / 1000))
	}
	if from.GetZone() != "" {
		zone = from.GetZone()
	}
	// The zone includes the figures, so that changing them resets the counters.
	r.zone = fmt.Sprintf("%s %d/%d %d %d", zone, from.GetRequests(), from.GetPeriod(), r.burst, r.concurrent)
	return r, nil
}

// Result is the decision about a request.
type Result int

const (
	// Admitted admits the request.
	Admitted Result = iota
	// RateExceeded rejects it because of the rate.
	RateExceeded
	// ConcurrencyExceeded rejects it because of concurrent requests.
	ConcurrencyExceeded
)

type key struct {
	zone   string
	client netip.Addr
}

type client struct {
	limiter *rate.Limiter
	open    int
}

// Table counts a bounded number of clients. Evicting the least recently used one resets its counters.
type Table struct {
	mutex   sync.Mutex
	clients *lru.Cache[key, *client]
}

// NewTable returns a Table with the given capacity.
func NewTable(most int) *Table { return &Table{clients: lru.New[key, *client](most)} }

// Begin counts a request of an address, or an IPv6 /64. The caller must call End on the result.
func (t *Table) Begin(rule *Rule, address netip.Addr, now time.Time) (*Counted, Result) {
	address = address.Unmap().WithZone("")
	if rule.exempt.Contains(address) {
		return nil, Admitted
	}
	if address.IsValid() {
		address = admission.Client(address)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	at := key{rule.zone, address}
	found, known := t.clients.Get(at)
	if !known {
		found = &client{limiter: rate.NewLimiter(rule.every, rule.burst)}
		t.clients.Put(at, found)
	}
	switch {
	case rule.concurrent > 0 && found.open >= rule.concurrent:
		return nil, ConcurrencyExceeded
	case !found.limiter.AllowN(now, 1):
		return nil, RateExceeded
	}
	found.open++
	return &Counted{t, found}, Admitted
}

// Counted is a counted request in progress; nil is not counted.
type Counted struct {
	table  *Table
	client *client
}

// End ends a counted request.
func (c *Counted) End() {
	if c != nil {
		c.table.mutex.Lock()
		defer c.table.mutex.Unlock()
		c.client.open--
	}
}
