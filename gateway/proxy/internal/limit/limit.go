// SPDX-License-Identifier: Apache-2.0

// Package limit bounds what each client may ask for: how often, and how much at once.
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
	"github.com/millrace-lb/millrace/gateway/proxy/internal/recent"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Rule is a limit for each client. It does not change and may be shared.
type Rule struct {
	// zone is what is counted together.
	zone string
	// every is the rate; Inf where only what is under way is limited.
	every rate.Limit
	burst int
	// concurrent is 0 where it is not limited.
	concurrent int
	// Status is what others get.
	Status int
	exempt *netipx.IPSet
}

// New reads a limit. zone is for one without.
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
		return nil, fmt.Errorf("status %d is none of a refusal", r.Status)
	case from.GetRequests() > 0 && from.GetPeriod() == 0:
		return nil, errors.New("a limit of requests without a period")
	case from.GetRequests() == 0 && from.GetConcurrent() == 0:
		return nil, errors.New("a limit of nothing")
	case from.GetRequests() > 0:
		// In a unit that no period is too long for.
		r.every = rate.Limit(float64(from.GetRequests()) / (float64(from.GetPeriod()) / 1000))
	}
	if from.GetZone() != "" {
		zone = from.GetZone()
	}
	// With its figures: where they change, counts begin again.
	r.zone = fmt.Sprintf("%s %d/%d %d %d", zone, from.GetRequests(), from.GetPeriod(), r.burst, r.concurrent)
	return r, nil
}

// Result is what comes of a request.
type Result int

const (
	// Within the limit.
	Within Result = iota
	// TooOften is beyond the rate.
	TooOften
	// TooMany is beyond what may be under way.
	TooMany
)

// key is a client in a zone.
type key struct {
	zone   string
	client netip.Addr
}

type client struct {
	limiter *rate.Limiter
	open    int
}

// Table counts so many clients in all zones. Beyond, the one that has asked for nothing for longest is
// forgotten: it has its whole burst again.
type Table struct {
	mutex   sync.Mutex
	clients *recent.Map[key, *client]
}

// NewTable counts so many clients.
func NewTable(most int) *Table { return &Table{clients: recent.New[key, *client](most)} }

// Begin counts a request of a client, whose address is its own or that of its /64 of IPv6. Where
// it is within the limit, End has to follow with what is counted.
func (t *Table) Begin(rule *Rule, address netip.Addr, now time.Time) (*Counted, Result) {
	address = address.Unmap().WithZone("")
	if rule.exempt.Contains(address) {
		return nil, Within
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
		return nil, TooMany
	case !found.limiter.AllowN(now, 1):
		return nil, TooOften
	}
	found.open++
	return &Counted{t, found}, Within
}

// Counted is a request under way; nil: one that does not count.
type Counted struct {
	table  *Table
	client *client
}

// End gives a request back.
func (c *Counted) End() {
	if c != nil {
		c.table.mutex.Lock()
		defer c.table.mutex.Unlock()
		c.client.open--
	}
}
