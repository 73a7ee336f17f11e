// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/access"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/extauth"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/rewrite"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// guards are the access filters of a rule.
type guards struct {
	addresses []*access.List
	// sufficient are lists whose clients need neither a password nor an authorization.
	sufficient []*access.List
	// password is the Basic authentication filter, or nil; challenge is its WWW-Authenticate value (RFC
	// 7617, section 2).
	password  *resource.BasicAuthentication
	challenge string
	// body limits the request body in bytes; 0 is unlimited.
	body int64
	// limits are limits per client.
	limits []limited
	// authorization is the external authorization, or nil.
	authorization *extauth.Filter
}

func (g *guards) any() bool {
	return len(g.addresses) > 0 || len(g.sufficient) > 0 || len(g.limits) > 0 || g.password != nil || g.authorization != nil || g.body > 0
}

// addList adds an address list.
func (g *guards) addList(from *resource.ClientAddresses) error {
	list, err := access.New(from)
	if from.GetSufficient() {
		g.sufficient = append(g.sufficient, list)
	} else {
		g.addresses = append(g.addresses, list)
	}
	return err
}

// limitBody sets the limit of the request body; the smallest of several limits applies.
func (g *guards) limitBody(bytes uint64) {
	if most := int64(min(bytes, math.MaxInt64)); most > 0 && (g.body == 0 || most < g.body) {
		g.body = most
	}
}

// admits reports whether the address lists admit a client. Sufficient lists replace a password or an
// authorization, and count like other lists if the rule has neither.
func (g *guards) admits(client netip.Addr) bool {
	return admitBy(g.addresses, client) && (g.password != nil || g.authorization != nil || admitBy(g.sufficient, client))
}

func admitBy(lists []*access.List, client netip.Addr) bool {
	return !slices.ContainsFunc(lists, func(list *access.List) bool { return !list.Admits(client) })
}

// denial is the rejection of a request by a filter.
type denial struct {
	status int
	// reason is the metric's label, text is the log message.
	reason, text string
}

// Error returns the log message.
func (d *denial) Error() string { return d.text }

var (
	deniedAddress = &denial{http.StatusForbidden, "client address", "the rule does not admit the client's address"}
	deniedPath    = &denial{http.StatusBadRequest, "path", rewrite.ErrPath.Error()}
	deniedWork    = &denial{http.StatusServiceUnavailable, "path", rewrite.ErrTooExpensive.Error()}
	deniedBody    = &denial{http.StatusRequestEntityTooLarge, "body", "the body exceeds the rule's limit"}
)

// admit applies the address lists and returns the denial, or nil.
func (x *exchange) admit() *denial {
	guards := &x.rule.filters.guards
	if len(guards.addresses)+len(guards.sufficient) > 0 && !guards.admits(x.address()) {
		return deniedAddress
	}
	return nil
}

// checkGuards applies the filters of requests that are neither redirected nor preflights. If it returns false,
// the request has been answered.
func (x *exchange) checkGuards(w *answer) bool {
	guards := &x.rule.filters.guards
	if len(guards.sufficient) > 0 && admitBy(guards.sufficient, x.address()) {
		if guards.authorization != nil {
			// Remove headers that only the authorization backend may set.
			x.granted = guards.authorization.Grant(http.Header{})
		}
	} else {
		if denied := x.authenticate(w); denied != nil {
			x.deny(w, denied)
			return false
		}
		if !x.authorize(w) {
			return false
		}
	}
	if denied := x.boundBody(w); denied != nil {
		x.deny(w, denied)
		return false
	}
	return true
}

// address returns the client's address according to trusted proxies; invalid if they did not send one.
func (x *exchange) address() netip.Addr { return canonical.Client(x.chain()) }

// deny sends the response of a denial.
func (x *exchange) deny(w *answer, denied *denial) {
	x.noteDenied(denied)
	if cors := x.rule.filters.cors; cors != nil {
		cors.decorate(x.in, w.Header())
	}
	changeHeaders(x.rule.filters.response, w.Header())
	x.refuse(w, denied.status)
}

func (x *exchange) noteDenied(denied *denial) {
	x.err = denied
	x.proxy.metrics.denied.WithLabelValues(denied.reason).Inc()
}

// boundBody rejects a body longer than the rule's limit, or limits reading a body of unknown length.
// net/http enforces Content-Length.
func (x *exchange) boundBody(w *answer) *denial {
	most := x.rule.filters.guards.body
	switch {
	case most == 0 || x.in.Body == nil || x.in.Body == http.NoBody:
	case x.in.ContentLength > most:
		return deniedBody
	case x.in.ContentLength < 0:
		// The inner ResponseWriter closes the connection instead of waiting for the rest of the body.
		x.in.Body = http.MaxBytesReader(w.ResponseWriter, x.in.Body, most)
	}
	return nil
}

// changeTarget applies the rule's rewrite expression. Other rewrites depend on the backend and follow
// later.
func (x *exchange) changeTarget() *denial {
	x.query = x.in.URL.RawQuery
	expression := x.rule.filters.expression
	if expression == nil {
		return nil
	}
	path, query, err := expression.Apply(x.path, x.query)
	switch {
	case errors.Is(err, rewrite.ErrTooExpensive):
		return deniedWork
	case err != nil:
		return deniedPath
	}
	x.path, x.query = path, query
	return nil
}

// tooLong reports whether an error was caused by exceeding the body limit of the rule or the proxy.
func (x *exchange) tooLong(err error) bool {
	var tooLarge *http.MaxBytesError
	if !errors.As(err, &tooLarge) {
		return false
	}
	if tooLarge.Limit == x.rule.filters.guards.body {
		x.noteDenied(deniedBody)
	}
	return true
}

// clientBehind returns the client's address. It is unknown behind trusted proxies, except for a single one
// that sends a PROXY protocol header.
func clientBehind(site *site, conn net.Conn) netip.Addr {
	hops := site.TrustedHops()
	if patient := clientConnOf(conn); patient != nil {
		hops -= patient.headerHops()
	}
	if hops > 0 {
		return netip.Addr{}
	}
	return addressOf(conn)
}
