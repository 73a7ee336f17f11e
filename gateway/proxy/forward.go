// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
)

func newForward(unlogged *log.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        rewriteRequest,
		Transport:      transport{},
		BufferPool:     &buffers{},
		ModifyResponse: modify,
		ErrorHandler:   failed,
		ErrorLog:       unlogged,
	}
}

func rewriteRequest(pr *httputil.ProxyRequest) {
	x, out := transactionOf(pr.In.Context()), pr.Out
	if x.path != out.URL.Path && !x.keepsPath() {
		out.URL.Path, out.URL.RawPath = x.path, ""
	}
	// ReverseProxy removes parameters that it cannot parse; restore them.
	out.URL.RawQuery = x.query
	// The server sets the values at the end of the body.
	out.Trailer = pr.In.Trailer
	x.forwarded(out.Header)
	if x.rule.filters.guards.password != nil {
		// The password is intended for the proxy, not for the backend.
		delete(out.Header, "Authorization")
	}
	x.granted.Apply(out.Header)
	host := ""
	for _, f := range []*filters{&x.rule.filters, &x.weighted.filters} {
		changeHeaders(f.request, out.Header)
		host = cmp.Or(f.host, host)
		if f.rewrite != nil {
			rewriteTarget(f.rewrite, x.rule.prefix, out)
		}
	}
	out.Host = cmp.Or(host, out.Host)
	addHop(pr.In.Header, out.Header)
	if _, ok := out.Header["User-Agent"]; !ok {
		// A nil value prevents net/http from adding its default.
		out.Header["User-Agent"] = nil
	}
}

// keepsPath reports whether a path that is not canonical is forwarded unchanged. Rewrites apply to the
// canonical one.
func (x *transaction) keepsPath() bool {
	return !x.rule.filters.changesPath() && !x.weighted.filters.changesPath() && plan.IsForwardable(x.in.URL.Path)
}

// forwarded describes the client's request. Values of the request itself count only behind trusted proxies.
func (x *transaction) forwarded(header http.Header) {
	origin, chain := x.origin(), x.chain()
	scheme := []string{origin.Scheme}
	header["X-Forwarded-For"] = []string{strings.Join(chain, ", ")}
	header["X-Forwarded-Host"] = []string{origin.Host}
	header["X-Forwarded-Port"] = []string{strconv.FormatUint(uint64(origin.Port), 10)}
	header["X-Forwarded-Proto"], header["X-Forwarded-Scheme"], header["X-Scheme"] = scheme, scheme[:1:1], scheme[:1:1]
	header["X-Real-Ip"] = []string{canonical.RealIP(chain)}
	if header.Get("X-Request-Id") == "" {
		header["X-Request-Id"] = []string{newRequestID()}
	}
}

// newRequestID returns 16 random bytes in hexadecimal digits, like nginx's $request_id.
func newRequestID() string {
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
}

func (x *transaction) origin() canonical.Origin {
	return canonical.OriginOf(x.in.Header, x.in.Host, x.in.TLS != nil, x.virtualHost.Resource.GetPort())
}

func (x *transaction) chain() []string {
	return canonical.Chain(x.in.RemoteAddr, x.in.Header["X-Forwarded-For"], x.trustedHops())
}

type transport struct{}

func (transport) RoundTrip(request *http.Request) (*http.Response, error) {
	x := transactionOf(request.Context())
	x.startClientSpan(request)
	x.mirror(request)
	if x.in.ProtoMajor == 2 && request.Body != nil && request.Body != http.NoBody {
		request.Body = endedBody{request.Body, x.in.Body}
	}
	policy := x.rule.policy
	policy.Prefer = x.sticky.endpoint
	if x.rule.timeout == 0 && policy.Timeout == 0 && !isGRPC(x.in) {
		policy.ResponseHeaderTimeout = x.proxy.settings.ResponseTimeout
	}
	policy.Room = x.accountHeader
	if request.Header["Upgrade"] != nil || request.Header["Expect"] != nil {
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

// endedBody closes the client's body when the backend ends the stream, so that a pending read does not delay
// the response.
type endedBody struct {
	io.Reader
	io.Closer
}

func modify(response *http.Response) error {
	x := transactionOf(response.Request.Context())
	if err := x.accountResponse(response); err != nil {
		return err
	}
	if response.ProtoMajor == 2 && response.Body != http.NoBody || len(response.TransferEncoding) > 0 {
		canonical.TrimResponseTrailer(response.Trailer)
		response.Body = &trailerResponse{response.Body, response}
	}
	if x.rule.filters.cors != nil {
		x.rule.filters.cors.decorate(x.in, response.Header)
	}
	if x.weighted.filters.cors != nil {
		x.weighted.filters.cors.decorate(x.in, response.Header)
	}
	if x.granted != nil && len(x.granted.Cookies) > 0 {
		response.Header["Set-Cookie"] = append(response.Header["Set-Cookie"], x.granted.Cookies...)
	}
	changeHeaders(x.weighted.filters.response, response.Header)
	changeHeaders(x.rule.filters.response, response.Header)
	if x.rule.session != nil {
		x.rule.session.setToken(x, response.Header)
	}
	return nil
}

// trailerResponse filters the trailers of a response, including unannounced ones, at the end of its body.
type trailerResponse struct {
	io.ReadCloser
	response *http.Response
}

func (t *trailerResponse) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if err == io.EOF {
		canonical.TrimResponseTrailer(t.response.Trailer)
	}
	return n, err
}

// statusClientClosed is nginx's status code in access logs for a client that disconnected.
const statusClientClosed = 499

func failed(w http.ResponseWriter, r *http.Request, err error) {
	x := transactionOf(r.Context())
	x.err = err
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	if errors.Is(err, upstream.ErrTooManyConnections) || errors.Is(err, upstream.ErrTooManyStreams) {
		x.proxy.metrics.shed.WithLabelValues("backend connection").Inc()
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
	if out, ok := w.(*responseWriter); ok {
		x.countReset(out)
	}
	http.Error(w, http.StatusText(status), status)
}

type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return new([bufferSize]byte)[:]
}

func (b *buffers) Put(buffer []byte) { b.pool.Put((*[bufferSize]byte)(buffer)) }
