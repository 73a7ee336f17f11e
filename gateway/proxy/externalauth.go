// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/extauth"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

const (
	// maxAuthorizationHeader limits the header of an authorization response in bytes.
	maxAuthorizationHeader = 64 << 10
	// maxAuthorizationBody limits the body forwarded to the client, or read to reuse the connection.
	maxAuthorizationBody = 16 << 10
	authorizationBytes   = 16<<10 + maxAuthorizationBody
)

const (
	// The authorization backend rejected the request.
	labelAuthorization = "authorization_denied"
	// The authorization backend did not answer, or its response is invalid.
	labelAuthorizationFailed = "authorization_error"
)

var errSecondAuthorization = errors.New("a rule has at most one external authorization")

// unauthorized hides errors of connections, which may contain bytes of a response and thus cookies.
func unauthorized(err error) *denial {
	text := "its response could not be read"
	for _, each := range []error{
		upstream.ErrTimeout, upstream.ErrRefused, upstream.ErrNoRoom, upstream.ErrTooManyConnections, upstream.ErrTooManyStreams,
		balance.ErrNone, balance.ErrBusy, errAuthorizationProtocol, errAuthorizationStatus,
	} {
		if errors.Is(err, each) {
			text = each.Error()
			break
		}
	}
	return &denial{http.StatusInternalServerError, labelAuthorizationFailed, "the authorization backend: " + text}
}

var (
	errAuthorizationProtocol = errors.New("it does not speak HTTP")
	errAuthorizationStatus   = errors.New("its response is neither 2xx nor 401 nor 403")
)

func (g *guards) addAuthorization(from *resource.ExternalAuthorization) (err error) {
	if g.authorization != nil {
		return errSecondAuthorization
	}
	g.authorization, err = extauth.New(from)
	return err
}

// authorize reports whether the request may continue; otherwise it has been answered.
func (x *transaction) authorize(w *responseWriter) bool {
	filter := x.rule.filters.guards.authorization
	if filter == nil {
		return true
	}
	if !x.reserve(authorizationBytes) {
		x.proxy.metrics.shed.WithLabelValues("external_authorization").Inc()
		x.refuse(w, http.StatusServiceUnavailable)
		return false
	}
	defer x.unreserve(authorizationBytes)
	limit := filter.Timeout
	if x.rule.timeout > 0 {
		limit = min(limit, x.rule.timeout)
	}
	begun := time.Now()
	// The client's disconnect cancels it, if net/http detects that.
	ctx, cancel := context.WithTimeoutCause(x.in.Context(), limit, upstream.ErrTimeout)
	defer cancel()
	request := x.authorizationRequest()
	reply, err := x.requestAuthorization(ctx, filter, request)
	x.waited = time.Since(begun)
	switch {
	case err != nil && x.in.Context().Err() != nil:
		x.err = context.Cause(x.in.Context())
		x.refuse(w, statusClientClosed)
		return false
	case err != nil:
		x.deny(w, unauthorized(err))
		return false
	}
	return x.applyAuthorization(w, filter, request, reply)
}

func (x *transaction) authorizationRequest() *extauth.Request {
	origin, chain := x.origin(), x.chain()
	return &extauth.Request{
		In: x.in, Path: x.path, RawPath: x.rawPath(), Scheme: origin.Scheme, Host: origin.Host,
		Client: canonical.RealIP(chain), Chain: strings.Join(chain, ", "),
	}
}

type authorization struct {
	status int
	header http.Header
	// body is nil if it exceeded the limit.
	body []byte
}

func (x *transaction) requestAuthorization(ctx context.Context, filter *extauth.Filter, of *extauth.Request) (*authorization, error) {
	backend := x.table.backend(filter.Backend)
	switch {
	case backend == nil:
		return nil, upstream.ErrRefused
	case backend.Protocol == resource.Backend_TCP:
		return nil, errAuthorizationProtocol
	}
	request := filter.NewRequest(of).WithContext(ctx)
	addHop(x.in.Header, request.Header)
	heading := int64(0)
	defer func() { x.unreserve(heading) }()
	policy := upstream.Policy{
		OnAttempt: x.proxy.metrics.backend(backend.Name).tried,
		Room: func(bytes int64) bool {
			if heading+bytes*admission.UnreadHeaderCost > maxAuthorizationHeader*admission.UnreadHeaderCost {
				return false
			}
			if !x.reserve(bytes * admission.UnreadHeaderCost) {
				return false
			}
			heading += bytes * admission.UnreadHeaderCost
			return true
		},
	}
	response, _, err := backend.RoundTrip(request, &policy)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	reply := &authorization{status: response.StatusCode, header: response.Header}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAuthorizationBody+1))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case len(body) <= maxAuthorizationBody:
		reply.body = body
	}
	return reply, nil
}

// applyAuthorization reports whether the request may continue.
func (x *transaction) applyAuthorization(w *responseWriter, filter *extauth.Filter, of *extauth.Request, reply *authorization) bool {
	verdict := filter.Evaluate(reply.status)
	if verdict == extauth.Allowed {
		granted := filter.Grant(reply.header)
		if !x.reserve(granted.Bytes()) {
			x.proxy.metrics.shed.WithLabelValues("external_authorization").Inc()
			x.refuse(w, http.StatusServiceUnavailable)
			return false
		}
		x.granted = granted
		return true
	}
	if verdict == extauth.Failed {
		x.deny(w, unauthorized(errAuthorizationStatus))
		return false
	}
	x.recordDenied(&denial{reply.status, labelAuthorization, fmt.Sprintf("the authorization backend answered %d", reply.status)})
	header := w.Header()
	if verdict == extauth.SignIn {
		if cookies := reply.header["Set-Cookie"]; len(cookies) > 0 {
			header["Set-Cookie"] = cookies
		}
		header.Set("Location", filter.Location(of))
		reply.status, reply.body = http.StatusFound, nil
	} else {
		extauth.CopyResponseHeaders(reply.header, header)
	}
	if cors := x.rule.filters.cors; cors != nil {
		cors.decorate(x.in, header)
	}
	changeHeaders(x.rule.filters.response, header)
	if reply.body == nil {
		header.Del("Content-Type")
	}
	w.WriteHeader(reply.status)
	if x.in.Method != http.MethodHead && len(reply.body) > 0 {
		_, _ = w.Write(reply.body)
	}
	return false
}
