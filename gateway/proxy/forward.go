// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
)

// forward sends the request to its backend and returns the response to the client. It panics with
// http.ErrAbortHandler if the response breaks off.
func (x *transaction) forward(w *responseWriter) {
	ctx := x.in.Context()
	if x.rule.timeout > 0 {
		limited, cancel := context.WithCancelCause(ctx)
		x.timer = time.AfterFunc(x.rule.timeout-x.waited, func() { cancel(upstream.ErrTimeout) })
		defer func() {
			x.timer.Stop()
			cancel(nil)
		}()
		ctx = limited
	}
	defer w.flushBroken()
	out := x.backendRequest(ctx)
	if out.Body != nil {
		body := &forwardedBody{ReadCloser: out.Body, isHTTP2: x.in.ProtoMajor == 2}
		out.Body = body
		defer body.ended.Store(true)
	}
	response, err := x.roundTrip(w, out)
	if err != nil {
		x.fail(ctx, w, err)
		return
	}
	defer response.Body.Close()
	isSwitched := response.StatusCode == http.StatusSwitchingProtocols
	if isSwitched && !strings.EqualFold(upgradeOf(response.Header), out.Header.Get("Upgrade")) {
		x.fail(ctx, w, errSwitched)
		return
	}
	if !isSwitched {
		removeHopByHop(response.Header)
	}
	if err := x.modify(response); err != nil {
		x.fail(ctx, w, err)
		return
	}
	if isSwitched {
		x.switchProtocols(ctx, w, response)
		return
	}
	x.respond(w, response)
}

// forwardedBody is the client's body until the end of the handler, after which net/http permits no Read.
type forwardedBody struct {
	io.ReadCloser
	isHTTP2 bool
	ended   atomic.Bool
}

func (b *forwardedBody) Read(p []byte) (int, error) {
	if b.ended.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.ReadCloser.Read(p)
}

// Close is called when the backend has ended the stream. On HTTP/2 a pending Read must not delay the response; on
// HTTP/1 the server reads the rest.
func (b *forwardedBody) Close() error {
	if b.isHTTP2 {
		return b.ReadCloser.Close()
	}
	b.ended.Store(true)
	return nil
}

func (x *transaction) backendRequest(ctx context.Context) *http.Request {
	out := x.in.WithContext(ctx)
	target := *x.in.URL
	out.URL, out.Close = &target, false
	if x.in.ContentLength == 0 || x.in.Body == http.NoBody {
		out.Body = nil
	}
	if x.path != target.Path && !x.keepsPath() {
		out.URL.Path, out.URL.RawPath = x.path, ""
	}
	out.URL.RawQuery = x.query
	out.Header = x.backendHeader()
	host := ""
	for _, f := range []*filters{&x.rule.filters, &x.weighted.filters} {
		changeHeaders(f.request, out.Header)
		host = cmp.Or(f.host, host)
		if f.rewrite != nil {
			rewriteTarget(f.rewrite, x.rule.prefix, out)
		}
	}
	out.Host = cmp.Or(host, out.Host)
	addHop(x.in.Header, out.Header)
	if _, ok := out.Header["User-Agent"]; !ok {
		// A nil value prevents net/http from adding its default.
		out.Header["User-Agent"] = nil
	}
	return out
}

// addedHeaders is the capacity for headers added by the proxy.
const addedHeaders = 12

// backendHeader returns the header before filters. It shares the values of the client's, clipped for append.
func (x *transaction) backendHeader() http.Header {
	header := make(http.Header, len(x.in.Header)+addedHeaders)
	for name, values := range x.in.Header {
		header[name] = values[:len(values):len(values)]
	}
	removeHopByHop(header)
	delete(header, "Forwarded")
	if httpguts.HeaderValuesContainsToken(x.in.Header["Te"], "trailers") {
		header["Te"] = []string{"trailers"}
	}
	if protocol := upgradeOf(x.in.Header); protocol != "" {
		header["Connection"], header["Upgrade"] = []string{"Upgrade"}, []string{protocol}
	}
	x.forwarded(header)
	if x.rule.filters.guards.password != nil {
		// The password is intended for the proxy, not for the backend.
		delete(header, "Authorization")
	}
	x.granted.Apply(header)
	return header
}

// keepsPath reports whether a path that is not canonical is forwarded unchanged. Rewrites apply to the
// canonical one.
func (x *transaction) keepsPath() bool {
	return !x.rule.filters.changesPath() && !x.weighted.filters.changesPath() && plan.IsForwardable(x.in.URL.Path)
}

// forwarded describes the client's request. Values of the request itself count only behind trusted proxies.
func (x *transaction) forwarded(header http.Header) {
	origin, chain := x.origin(), x.chain()
	// One array for all values. Each slice is clipped for append.
	values := [...]string{strings.Join(chain, ", "), origin.Host, strconv.FormatUint(uint64(origin.Port), 10), origin.Scheme, canonical.RealIP(chain)}
	header["X-Forwarded-For"], header["X-Forwarded-Host"] = values[0:1:1], values[1:2:2]
	header["X-Forwarded-Port"], header["X-Real-Ip"] = values[2:3:3], values[4:5:5]
	scheme := values[3:4:4]
	header["X-Forwarded-Proto"], header["X-Forwarded-Scheme"], header["X-Scheme"] = scheme, scheme, scheme
	if header.Get("X-Request-Id") == "" {
		header["X-Request-Id"] = []string{newRequestID()}
	}
}

// newRequestID returns 16 random bytes in hexadecimal digits, like nginx's $request_id.
func newRequestID() string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return hex.EncodeToString(id[:])
}

func (x *transaction) origin() canonical.Origin {
	return canonical.OriginOf(x.in.Header, x.in.Host, x.in.TLS != nil, x.virtualHost.Resource.GetPort())
}

func (x *transaction) chain() []string {
	return canonical.Chain(x.in.RemoteAddr, x.in.Header["X-Forwarded-For"], x.trustedHops())
}

func (x *transaction) roundTrip(w *responseWriter, request *http.Request) (*http.Response, error) {
	x.startClientSpan(request)
	x.mirror(request)
	policy := x.rule.policy
	policy.Prefer = x.sticky.endpoint
	if x.rule.timeout == 0 && policy.Timeout == 0 && !isGRPC(x.in) {
		policy.ResponseHeaderTimeout = x.proxy.settings.ResponseTimeout
	}
	policy.Room = x.accountHeader
	policy.Informational = w.inform
	if request.Header["Upgrade"] != nil {
		policy.Client = x.client()
	}
	policy.OnAttempt = x.proxy.metrics.backend(x.backend.Name).tried
	response, exchange, err := x.backend.RoundTrip(request, &policy)
	if err == nil && response.StatusCode == http.StatusSwitchingProtocols && x.timer != nil {
		// The timeouts apply to requests, not to upgraded connections.
		x.timer.Stop()
	}
	x.endpoint, x.attempts = exchange.Endpoint, exchange.Attempts
	x.received(response, err)
	return response, err
}

// client returns the client's address; zero behind trusted proxies.
func (x *transaction) client() netip.Addr {
	if x.trustedHops() > 0 {
		return netip.Addr{}
	}
	address, err := netip.ParseAddrPort(x.in.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return admission.Client(address.Addr())
}

// statusClientClosed is nginx's status code in access logs for a client that disconnected.
const statusClientClosed = 499

// fail sends the error response of a request without a response.
func (x *transaction) fail(ctx context.Context, w *responseWriter, err error) {
	x.err = err
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, upstream.ErrTooManyConnections) || errors.Is(err, upstream.ErrTooManyStreams) {
		x.proxy.metrics.shed.WithLabelValues("backend_connection").Inc()
	}
	status := http.StatusBadGateway
	var timeout net.Error
	switch {
	case errors.Is(x.body.readError(), os.ErrDeadlineExceeded):
		// Checked first, because it cancels the request's context too.
		status = http.StatusRequestTimeout
	case errors.Is(err, balance.ErrNone), errors.Is(err, balance.ErrBusy), errors.Is(err, upstream.ErrNoRoom), errors.Is(err, upstream.ErrTooManyConnections),
		errors.Is(err, upstream.ErrTooManyStreams):
		status = http.StatusServiceUnavailable
	case errors.Is(err, upstream.ErrRefused):
		status = http.StatusInternalServerError
	case errors.Is(err, upstream.ErrTimeout):
		status = http.StatusGatewayTimeout
	case x.tooLong(err):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, context.Canceled):
		status = statusClientClosed
	case x.body.readError() != nil:
		status = http.StatusBadRequest
	case errors.As(err, &timeout) && timeout.Timeout():
		status = http.StatusGatewayTimeout
	}
	if x.body.readError() != nil {
		// The server must not wait for the rest of the body.
		w.Header().Set("Connection", "close")
	}
	changeHeaders(x.rule.filters.response, w.Header())
	x.countReset(w)
	http.Error(w, http.StatusText(status), status)
}
