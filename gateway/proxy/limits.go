// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/limit"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// maxCounted is the maximum number of counted clients in all zones, 400 bytes each.
const maxCounted = 50_000

type clientLimiter struct {
	*limit.Rule
	rateDenial, concurrencyDenial *denial
}

func (g *guards) limitClients(from *resource.ClientLimit, route string) error {
	rule, err := limit.New(from, route)
	if err != nil {
		return err
	}
	g.limits = append(g.limits, clientLimiter{
		rule,
		&denial{rule.Status, "rate_limit", "the client exceeds the rule's request rate"},
		&denial{rule.Status, "concurrency_limit", "the client exceeds the rule's concurrent requests"},
	})
	return nil
}

// count counts a request until leave, or returns the denial of an exceeded limit.
func (p *Proxy) count(guards *guards, client netip.Addr) (leave func(), denied *denial) {
	var counted []*limit.Counted
	leave = func() {
		for _, each := range counted {
			each.End()
		}
	}
	now := time.Now()
	for _, each := range guards.limits {
		one, result := p.limits.Begin(each.Rule, client, now)
		switch result {
		case limit.RateExceeded:
			denied = each.rateDenial
		case limit.ConcurrencyExceeded:
			denied = each.concurrencyDenial
		}
		if denied != nil {
			leave()
			return func() {}, denied
		}
		counted = append(counted, one)
	}
	return leave, nil
}
