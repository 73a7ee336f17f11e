// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// handleUnusual serves requests of net/http's servers.
func (s *server) handleUnusual(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		// net/http decides by the type of its own request's body whether to drain the rest; after Expect it
		// would wait for a body that was never requested.
		r = r.WithContext(r.Context())
	}
	s.handle(w, r, r.ProtoMajor == 1 && isAmbiguous(r))
}

// isAmbiguous reports whether an HTTP/1 request may have both Content-Length and Transfer-Encoding. net/http removes
// the former, so only the framing of a connection's first request is known.
func isAmbiguous(r *http.Request) bool {
	framing := h1.FramingUnknown
	if conn := connOf(r); conn != nil {
		framing, conn.framing = conn.framing, framing
	}
	return framing == h1.FramingConflict || framing == h1.FramingUnknown && len(r.TransferEncoding) > 0
}

// handle serves a request. The connection does not persist after an ambiguous one (RFC 9112, section 6.1).
func (s *server) handle(w http.ResponseWriter, r *http.Request, isAmbiguous bool) {
	p := s.proxy
	x := &transaction{proxy: p, in: r, table: p.table.Load(), begun: time.Now(), isAmbiguous: isAmbiguous}
	out := newResponseWriter(w, r, p.settings.WriteTimeout)
	// Must precede all reads of the request.
	status := canonical.Request(r)
	x.receiveBody(w, out)
	p.metrics.active.Inc()
	defer func() {
		p.metrics.active.Dec()
		p.recordEnd(x, out)
	}()
	if upgrades(r) {
		s.tunnels.Add(1)
		defer s.tunnels.Done()
		if isWebSocket(r) {
			out.webSocket = p.ended
		}
	}
	room, leave, end := s.beginRequest(r)
	defer end()
	defer x.unreserveAll()
	defer x.countReset(out)
	defer out.finish()
	if leave || isAmbiguous || p.draining.Load() || s.leaving.Load() {
		// On HTTP/2 net/http sends GOAWAY. Idle connections are not closed, which would lose requests in flight.
		w.Header().Set("Connection", "close")
	}
	switch {
	case !room:
		p.metrics.shed.WithLabelValues("request").Inc()
		x.startServerSpan()
		// No body, which would require buffers until the client reads it.
		out.WriteHeader(http.StatusServiceUnavailable)
		return
	case status == 0:
		status = x.route(s.number)
	}
	x.startServerSpan()
	if status != 0 {
		x.refuse(out, status)
		return
	}
	x.serve(out)
}

func (x *transaction) receiveBody(w http.ResponseWriter, out *responseWriter) {
	r, settings := x.in, &x.proxy.settings
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if settings.MaxBodyBytes > 0 {
		r.Body = http.MaxBytesReader(w, r.Body, settings.MaxBodyBytes)
	}
	// A gRPC stream may be idle for any time.
	if settings.BodyTimeout > 0 && !isGRPC(r) {
		out.body = &timeoutBody{
			ReadCloser: r.Body, controller: out.controller, timeout: settings.BodyTimeout, http2: r.ProtoMajor == 2,
		}
		x.body, r.Body = out.body, out.body
	}
}

// countReset counts an HTTP/2 request reset by the client. After too many, the header Connection makes net/http
// send GOAWAY and drain the streams; once the response header is sent, the connection is closed at once.
func (x *transaction) countReset(w *responseWriter) {
	if x.isResetCounted || x.in.ProtoMajor != 2 || x.in.Context().Err() == nil {
		return
	}
	x.isResetCounted = true
	entry := entryIn(x.in)
	if !entry.Reset(time.Now()) {
		return
	}
	x.proxy.metrics.abuse.WithLabelValues("too_many_resets").Inc()
	if w.status != 0 {
		entry.Drop()
		return
	}
	w.Header().Set("Connection", "close")
}

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// requestBytes is the memory of a request without its header.
const requestBytes = 40 << 10

// beginRequest accounts a request and reports whether there is room; the caller must call end.
func (s *server) beginRequest(r *http.Request) (room, leave bool, end func()) {
	entry := entryIn(r)
	if entry == nil {
		return true, false, func() {}
	}
	if r.ProtoMajor == 2 {
		entry.Multiplexed()
	}
	bytes := requestBytes + int64(len(r.RequestURI)) + bufferedBody(r)
	if r.ProtoMajor == 2 && r.Trailer != nil {
		// Trailers are another header, kept until the body has been read.
		bytes += admission.OpenHeaderBytes
	}
	if upgrades(r) {
		bytes += tunnelBytes
	}
	for name, values := range r.Header {
		for _, value := range values {
			bytes += int64(len(name)+len(value)) + admission.FieldBytes
		}
	}
	room, leave, evicted := entry.Begin(bytes)
	if evicted > 0 {
		s.proxy.metrics.shed.WithLabelValues("idle_connection").Add(float64(evicted))
	}
	if room {
		return room, leave, func() { entry.End(bytes) }
	}
	if !entry.Refuse(bytes) {
		s.proxy.metrics.shed.WithLabelValues("rejecting_connection").Inc()
		entry.Drop()
	}
	return room, leave, func() { entry.Refused(bytes) }
}

// bufferedBody bounds the body bytes buffered by the proxy; over HTTP/1.1 they remain with the client.
func bufferedBody(r *http.Request) int64 {
	switch {
	case r.ProtoMajor != 2 || r.Body == nil || r.Body == http.NoBody:
		return 0
	case r.ContentLength >= 0:
		return min(r.ContentLength, admission.RequestBodyBytes)
	}
	return admission.RequestBodyBytes
}

// accountResponse accounts response header and buffered HTTP/2 body until unreserveAll.
func (x *transaction) accountResponse(response *http.Response) error {
	// The header being read was accounted with a higher cost.
	x.unreserve(x.heading)
	x.heading = 0
	bytes := responseHeaderBytes(response.Header)
	if response.ProtoMajor == 2 && response.Body != http.NoBody {
		body := int64(admission.AnswerBodyBytes)
		if response.ContentLength > 0 {
			body = min(body, response.ContentLength)
		}
		bytes += body
	}
	if !x.reserve(bytes) {
		x.proxy.metrics.shed.WithLabelValues("response").Inc()
		return upstream.ErrNoRoom
	}
	return nil
}

// responseHeaderBytes returns the memory of a response header and its copy beyond freeResponseHeaderBytes.
func responseHeaderBytes(header http.Header) (bytes int64) {
	for name, values := range header {
		for _, value := range values {
			bytes += 2 * (int64(len(name)+len(value)) + admission.FieldBytes)
		}
	}
	return max(bytes-freeResponseHeaderBytes, 0)
}

// freeResponseHeaderBytes are included in requestBytes and suffice for most responses.
const freeResponseHeaderBytes = 8 << 10

// accountHeader accounts bytes of an incomplete response header and reports whether there is room.
func (x *transaction) accountHeader(bytes int64) bool {
	bytes *= admission.UnreadHeaderCost
	if !x.reserve(bytes) {
		x.proxy.metrics.shed.WithLabelValues("response").Inc()
		return false
	}
	x.heading += bytes
	return true
}

// reserve accounts additional bytes until unreserve or unreserveAll, and reports whether there is room.
func (x *transaction) reserve(bytes int64) bool {
	entry := entryIn(x.in)
	if entry == nil || bytes == 0 {
		return true
	}
	room, evicted := entry.More(bytes)
	if evicted > 0 {
		x.proxy.metrics.shed.WithLabelValues("idle_connection").Add(float64(evicted))
	}
	if room {
		x.held += bytes
	}
	return room
}

func (x *transaction) unreserve(bytes int64) {
	if entry := entryIn(x.in); entry != nil && bytes > 0 {
		entry.Less(bytes)
		x.held -= bytes
	}
}

func (x *transaction) unreserveAll() { x.unreserve(x.held) }

func entryIn(r *http.Request) *admission.Connection {
	if conn := connOf(r); conn != nil {
		return conn.entry
	}
	return nil
}

// errAmbiguous is logged for a 400 response behind trusted proxies.
var errAmbiguous = errors.New("the request may have both Content-Length and Transfer-Encoding")

// route returns the status code of a rejection, or 0.
func (x *transaction) route(number uint16) int {
	r := x.in
	message := plan.Message{
		Method: r.Method, Host: r.Host, Path: r.URL.Path, RawQuery: r.URL.RawQuery, Header: r.Header, HeaderHops: headerHopsOf(r),
	}
	if r.TLS != nil {
		message.TLS, message.ServerName = true, r.TLS.ServerName
	}
	found, status := plan.Find(&message, func(host string) (*virtualHost, bool) {
		s := x.table.virtualHost(number, host)
		return s, s != nil
	})
	x.host, x.path, x.virtualHost = found.Host, found.Path, found.VirtualHost
	if status == 0 {
		x.rule = found.Group.Rules[found.Rule]
		switch {
		case countHops(r.Header) >= maxHops:
			x.err, status = errLoop, http.StatusLoopDetected
		case x.isAmbiguous && x.virtualHost.Resource.GetTrustedHops() > 0:
			// The proxy in front may have delimited the body in another way.
			x.err, status = errAmbiguous, http.StatusBadRequest
		}
	}
	return status
}

func (x *transaction) serve(w *responseWriter) {
	filters := &x.rule.filters
	if denied := x.admit(); denied != nil {
		x.deny(w, denied)
		return
	}
	if filters.cors != nil && isPreflight(x.in) {
		filters.cors.setHeaders(x.in, w.Header())
		changeHeaders(filters.response, w.Header())
		w.WriteHeader(http.StatusOK)
		return
	}
	if redirect := filters.redirect; plan.Redirects(redirect, x.in.Header, x.in.TLS != nil) {
		x.redirect(w, redirect)
		return
	}
	if len(filters.guards.limits) > 0 {
		leave, denied := x.proxy.count(&filters.guards, x.address())
		if denied != nil {
			x.deny(w, denied)
			return
		}
		defer leave()
	}
	if x.checkGuards(w) {
		x.selectBackend(w)
	}
}

func (x *transaction) selectBackend(w *responseWriter) {
	x.chooseBackend()
	if x.weighted != nil && plan.Redirects(x.weighted.filters.redirect, x.in.Header, x.in.TLS != nil) {
		x.redirect(w, x.weighted.filters.redirect)
		return
	}
	if x.weighted == nil || x.weighted.backend == "" {
		x.refuse(w, http.StatusInternalServerError)
		return
	}
	x.backend = x.table.backend(x.weighted.backend)
	if x.backend.Refuse || x.backend.Protocol == resource.Backend_TCP {
		x.refuse(w, http.StatusInternalServerError)
		return
	}
	if denied := x.changeTarget(); denied != nil {
		x.deny(w, denied)
		return
	}
	if !x.bufferForMirrors() {
		x.refuse(w, http.StatusBadRequest)
		return
	}
	x.forward(w)
}

func (x *transaction) chooseBackend() {
	if x.rule.session != nil {
		x.sticky = x.rule.session.find(x, x.begun)
		x.weighted = x.sticky.backend
	}
	if x.weighted == nil {
		x.weighted = x.rule.pick()
	}
}

func (x *transaction) redirect(w *responseWriter, redirect *resource.Redirect) {
	if x.rule.filters.cors != nil {
		x.rule.filters.cors.decorate(x.in, w.Header())
	}
	changeHeaders(x.rule.filters.response, w.Header())
	origin := x.origin()
	w.Header().Set("Location", plan.Location(redirect, x.rule.prefix, &plan.Target{
		TLS: origin.Scheme == "https", Host: x.host, Path: x.path, RawPath: x.rawPath(), RawQuery: x.in.URL.RawQuery,
		Port: origin.Port,
	}))
	w.WriteHeader(plan.RedirectStatus(redirect))
}

func (x *transaction) refuse(w *responseWriter, status int) {
	if x.in.Method == http.MethodConnect {
		w.Header().Set("Connection", "close")
	}
	http.Error(w, http.StatusText(status), status)
}

func upgrades(r *http.Request) bool { return r.ProtoMajor == 1 && r.Header.Get("Upgrade") != "" }
