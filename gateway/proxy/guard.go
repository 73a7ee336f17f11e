// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/access"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/edge"
)

// guards are the filters of a rule that keep clients out.
type guards struct {
	addresses []*access.List
}

func (g *guards) any() bool { return len(g.addresses) > 0 }

// admits reports whether a client's address is let in.
func (g *guards) admits(client netip.Addr) bool {
	for _, list := range g.addresses {
		if !list.Admits(client) {
			return false
		}
	}
	return true
}

// denial is why a filter does not let a request pass.
type denial struct {
	status int
	// reason is a label of the metric, text is for the log.
	reason, text string
}

// Error is for the log.
func (d *denial) Error() string { return d.text }

var deniedAddress = &denial{http.StatusForbidden, "client address", "the rule does not serve the client's address"}

// admit reports why a rule does not serve a client, whatever it asks for; nil: it does.
func (x *exchange) admit() *denial {
	guards := &x.rule.filters.guards
	if len(guards.addresses) > 0 && !guards.admits(x.address()) {
		return deniedAddress
	}
	return nil
}

// address is that of the client, as far as proxies in front are trusted; not valid where they
// name none.
func (x *exchange) address() netip.Addr { return edge.Client(x.chain()) }

// deny answers a request that a filter does not let pass.
func (x *exchange) deny(w *answer, denied *denial) {
	x.err = denied
	x.proxy.metrics.denied.WithLabelValues(denied.reason).Inc()
	if cors := x.rule.filters.cors; cors != nil {
		cors.decorate(x.in, w.Header())
	}
	changeHeaders(x.rule.filters.response, w.Header())
	x.refuse(w, denied.status)
}

// clientBehind is whose connection it is. It is not known where proxies in front are trusted:
// these would say it in a header only.
func clientBehind(site *site, conn net.Conn) netip.Addr {
	if site.Trusted() {
		return netip.Addr{}
	}
	return addressOf(conn)
}
