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
	"github.com/millrace-lb/millrace/gateway/proxy/internal/edge"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/extauth"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/rewrite"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// guards are the filters of a rule that keep clients out.
type guards struct {
	addresses []*access.List
	// sufficient are lists whose clients need neither a password nor an authorization.
	sufficient []*access.List
	// password is what asks for one, or nil, and challenge the header that does (RFC 7617, section 2).
	password  *resource.BasicAuthentication
	challenge string
	// body is the largest body of a request, in bytes; 0 is no limit.
	body int64
	// limits are what each client may ask for.
	limits []limited
	// authorization is asked for each request; nil: nobody is.
	authorization *extauth.Filter
}

func (g *guards) any() bool {
	return len(g.addresses) > 0 || len(g.sufficient) > 0 || len(g.limits) > 0 || g.password != nil || g.authorization != nil || g.body > 0
}

// list adds a list of addresses.
func (g *guards) list(from *resource.ClientAddresses) error {
	list, err := access.New(from)
	if from.GetSufficient() {
		g.sufficient = append(g.sufficient, list)
	} else {
		g.addresses = append(g.addresses, list)
	}
	return err
}

// limitBody bounds the body of a request; of several bounds the smallest counts.
func (g *guards) limitBody(bytes uint64) {
	if most := int64(min(bytes, math.MaxInt64)); most > 0 && (g.body == 0 || most < g.body) {
		g.body = most
	}
}

// admits reports whether a client's address is let in. Sufficient lists replace a password or an authorization, and
// count like other lists if the rule has neither.
func (g *guards) admits(client netip.Addr) bool {
	return admitBy(g.addresses, client) && (g.password != nil || g.authorization != nil || admitBy(g.sufficient, client))
}

func admitBy(lists []*access.List, client netip.Addr) bool {
	return !slices.ContainsFunc(lists, func(list *access.List) bool { return !list.Admits(client) })
}

// denial is why a filter does not let a request pass.
type denial struct {
	status int
	// reason is a label of the metric, text is for the log.
	reason, text string
}

// Error is for the log.
func (d *denial) Error() string { return d.text }

var (
	deniedAddress = &denial{http.StatusForbidden, "client address", "the rule does not serve the client's address"}
	deniedPath    = &denial{http.StatusBadRequest, "path", rewrite.ErrPath.Error()}
	deniedWork    = &denial{http.StatusServiceUnavailable, "path", rewrite.ErrTooMuch.Error()}
	deniedBody    = &denial{http.StatusRequestEntityTooLarge, "body", "the body is longer than the rule lets it be"}
)

// admit reports why a rule does not serve a client, whatever it asks for; nil: it does.
func (x *exchange) admit() *denial {
	guards := &x.rule.filters.guards
	if len(guards.addresses)+len(guards.sufficient) > 0 && !guards.admits(x.address()) {
		return deniedAddress
	}
	return nil
}

// passes reports whether a request goes on that is neither redirected nor a preflight. Else it has
// been answered.
func (x *exchange) passes(w *answer) bool {
	guards := &x.rule.filters.guards
	if len(guards.sufficient) > 0 && admitBy(guards.sufficient, x.address()) {
		if guards.authorization != nil {
			// The client must not send headers of the authorization backend itself.
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

// address is that of the client, as far as proxies in front are trusted; not valid where they
// name none.
func (x *exchange) address() netip.Addr { return edge.Client(x.chain()) }

// deny answers a request that a filter does not let pass.
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

// boundBody reports whether a body is too long, or sees to it that no more of it is read than the
// rule lets through. Of a body with a length net/http reads no more.
func (x *exchange) boundBody(w *answer) *denial {
	most := x.rule.filters.guards.body
	switch {
	case most == 0 || x.in.Body == nil || x.in.Body == http.NoBody:
	case x.in.ContentLength > most:
		return deniedBody
	case x.in.ContentLength < 0:
		// What is under answer tells net/http not to wait for the rest.
		x.in.Body = http.MaxBytesReader(w.ResponseWriter, x.in.Body, most)
	}
	return nil
}

// changeTarget finds the path and query for the backend where the rule has an expression for them.
// What the others change depends on the backend.
func (x *exchange) changeTarget() *denial {
	x.query = x.in.URL.RawQuery
	expression := x.rule.filters.expression
	if expression == nil {
		return nil
	}
	path, query, err := expression.Apply(x.path, x.query)
	switch {
	case errors.Is(err, rewrite.ErrTooMuch):
		return deniedWork
	case err != nil:
		return deniedPath
	}
	x.path, x.query = path, query
	return nil
}

// tooLong reports whether an error is that of a body that is too long, for the rule or for the proxy.
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

// clientBehind returns the client's address. It is not known behind trusted proxies, unless the last one sends
// a header of PROXY protocol and is the only one.
func clientBehind(site *site, conn net.Conn) netip.Addr {
	hops := site.TrustedHops()
	if patient := patientOf(conn); patient != nil {
		hops -= patient.headerHops()
	}
	if hops > 0 {
		return netip.Addr{}
	}
	return addressOf(conn)
}
