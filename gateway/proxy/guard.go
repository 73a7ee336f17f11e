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

type guards struct {
	addresses []*access.List
	// sufficient lists admit clients without a password or an authorization.
	sufficient []*access.List
	// password is nil without Basic authentication; challenge is WWW-Authenticate (RFC 7617, section 2).
	password  *resource.BasicAuthentication
	challenge string
	// body limits the request body in bytes; 0 is unlimited.
	body          int64
	limits        []clientLimiter
	authorization *extauth.Filter
}

func (g *guards) any() bool {
	return len(g.addresses) > 0 || len(g.sufficient) > 0 || len(g.limits) > 0 || g.password != nil || g.authorization != nil || g.body > 0
}

func (g *guards) addList(from *resource.ClientAddresses) error {
	list, err := access.New(from)
	if from.GetSufficient() {
		g.sufficient = append(g.sufficient, list)
	} else {
		g.addresses = append(g.addresses, list)
	}
	return err
}

// limitBody applies the smallest of several limits.
func (g *guards) limitBody(bytes uint64) {
	if most := int64(min(bytes, math.MaxInt64)); most > 0 && (g.body == 0 || most < g.body) {
		g.body = most
	}
}

// admits reports whether the address lists admit a client. Sufficient ones count only if no password or
// authorization is required.
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

func (d *denial) Error() string { return d.text }

var (
	deniedAddress = &denial{http.StatusForbidden, "client_address", "the rule does not admit the client's address"}
	deniedPath    = &denial{http.StatusBadRequest, "path", rewrite.ErrPath.Error()}
	deniedCost    = &denial{http.StatusServiceUnavailable, "path", rewrite.ErrTooExpensive.Error()}
	deniedBody    = &denial{http.StatusRequestEntityTooLarge, "body_size", "the body exceeds the rule's limit"}
)

func (x *transaction) admit() *denial {
	guards := &x.rule.filters.guards
	if len(guards.addresses)+len(guards.sufficient) > 0 && !guards.admits(x.address()) {
		return deniedAddress
	}
	return nil
}

// checkGuards applies filters, except to redirects and preflights. If it returns false, the request has been
// answered.
func (x *transaction) checkGuards(w *responseWriter) bool {
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
func (x *transaction) address() netip.Addr { return canonical.Client(x.chain()) }

func (x *transaction) deny(w *responseWriter, denied *denial) {
	x.recordDenied(denied)
	if cors := x.rule.filters.cors; cors != nil {
		cors.decorate(x.in, w.Header())
	}
	changeHeaders(x.rule.filters.response, w.Header())
	x.refuse(w, denied.status)
}

func (x *transaction) recordDenied(denied *denial) {
	x.err = denied
	x.proxy.metrics.denied.WithLabelValues(denied.reason).Inc()
}

// boundBody limits a body of unknown length and rejects a longer Content-Length, which net/http enforces.
func (x *transaction) boundBody(w *responseWriter) *denial {
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

// changeTarget applies the rewrite expression. Other rewrites depend on the backend and follow later.
func (x *transaction) changeTarget() *denial {
	x.query = x.in.URL.RawQuery
	expression := x.rule.filters.expression
	if expression == nil {
		return nil
	}
	path, query, err := expression.Apply(x.path, x.query)
	switch {
	case errors.Is(err, rewrite.ErrTooExpensive):
		return deniedCost
	case err != nil:
		return deniedPath
	}
	x.path, x.query = path, query
	return nil
}

// tooLong reports whether a body exceeded the limit of the rule or the proxy.
func (x *transaction) tooLong(err error) bool {
	var tooLarge *http.MaxBytesError
	if !errors.As(err, &tooLarge) {
		return false
	}
	if tooLarge.Limit == x.rule.filters.guards.body {
		x.recordDenied(deniedBody)
	}
	return true
}

// proxiedClient knows the client behind a single trusted proxy only, if that sends a PROXY protocol header.
func proxiedClient(vhost *virtualHost, conn net.Conn) netip.Addr {
	hops := int(vhost.Resource.GetTrustedHops())
	if client := clientConnOf(conn); client != nil {
		hops -= client.headerHops()
	}
	if hops > 0 {
		return netip.Addr{}
	}
	return addressOf(conn)
}
