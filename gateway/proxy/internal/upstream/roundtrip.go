// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// Errors of RoundTrip, beside those of balance.Pick.
var (
	ErrRefused = errors.New("the backend's configuration is invalid, so nothing is sent")
	ErrTimeout = errors.New("the time limit of the request is over")
	ErrNoRoom  = errors.New("no memory is left for the answer")
	errLeft    = errors.New("the endpoint has left, and had not answered")
)

// Policy is what a rule wants of an exchange with a backend.
type Policy struct {
	// Attempts is how often a request may be sent again, with Backoff in between, where a
	// response has one of Statuses or the backend fails.
	Attempts int
	Statuses []uint32
	Backoff  time.Duration
	// Timeout is for each attempt, up to the end of its response. 0 is none.
	Timeout time.Duration
	// Silence is for the header of a response, when the request has been sent. 0 is no limit.
	Silence time.Duration
	// Prefer is the endpoint of the session, or nil.
	Prefer *balance.Endpoint
	// Room is asked for each part of a response's header beyond the first 4 KiB, in bytes. Where it
	// reports that there is none, the request ends with ErrNoRoom. It may be nil.
	Room func(bytes int64) bool
	// Client is who sends the request; zero where many share an address.
	Client netip.Addr
	// Tried is called with the outcome of each attempt; it may be nil.
	Tried func(status int, err error)
}

// Exchange is a response and who gave it.
type Exchange struct {
	Endpoint *balance.Endpoint
	Attempts int
}

// RoundTrip sends a request to one endpoint, or to others where it may be sent again. The
// endpoint is given back when the response's body is closed.
func (b *Backend) RoundTrip(request *http.Request, policy *Policy) (*http.Response, Exchange, error) {
	if b.Refuse {
		closeBody(request)
		return nil, Exchange{}, ErrRefused
	}
	body := &guardedBody{ReadCloser: request.Body}
	hasBody := hasBody(request)
	var tried []*balance.Endpoint
	for {
		endpoint, err := b.choose(policy, tried)
		if err != nil {
			return nil, Exchange{Attempts: len(tried)}, err
		}
		tried = append(tried, endpoint)
		if hasBody {
			request.Body = body
		}
		response, err := b.attempt(request, endpoint, policy)
		if policy.Tried != nil {
			policy.Tried(status(response), err)
		}
		exchange := Exchange{Endpoint: endpoint, Attempts: len(tried)}
		if !b.again(request, policy, outcome{response, err, len(tried), hasBody, body.touched.Load()}) {
			return response, exchange, err
		}
		if response != nil {
			// A short rest is read, so that the connection can be used again.
			_, _ = io.CopyN(io.Discard, response.Body, 4096)
			_ = response.Body.Close()
		}
		if !wait(request.Context(), policy.Backoff) {
			return nil, exchange, context.Cause(request.Context())
		}
	}
}

func (b *Backend) choose(policy *Policy, tried []*balance.Endpoint) (*balance.Endpoint, error) {
	now := time.Now()
	if policy.Prefer != nil && len(tried) == 0 && policy.Prefer.Take(now) {
		return policy.Prefer, nil
	}
	set := b.Set
	if len(tried) > 0 && tried[len(tried)-1].Gone() {
		// The set is of the configuration that the request began with.
		set = set.Latest()
	}
	return set.Pick(now, tried)
}

// repeats reports whether a request may be sent again that an endpoint may have served.
func repeats(request *http.Request) bool { return !hasBody(request) && idempotent(request.Method) }

// attempt sends a request to an endpoint.
func (b *Backend) attempt(request *http.Request, endpoint *balance.Endpoint, policy *Policy) (*http.Response, error) {
	switched, end := false, func(bool, time.Time) {}
	if b.transport.isSingle(request) {
		var ok bool
		if end, ok = endpoint.TakeSingle(policy.Client, true, time.Now()); !ok {
			endpoint.Release()
			return nil, notEstablished{ErrTooManyConnections}
		}
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	var timer *time.Timer
	if policy.Timeout > 0 {
		timer = time.AfterFunc(policy.Timeout, func() { cancel(ErrTimeout) })
	}
	release := once(func() {
		if timer != nil {
			timer.Stop()
		}
		cancel(nil)
		end(switched, time.Now())
		endpoint.Release()
	})
	silence := newSilence(endpoint, policy.Silence, repeats(request), cancel)
	response, err := b.send(request.WithContext(ctx), endpoint, silence, policy)
	silence.over()
	if err != nil {
		// Before the release, which ends the context, too.
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	}
	b.judge(endpoint, response, err)
	if err != nil {
		release()
		return nil, err
	}
	if rw, ok := response.Body.(io.ReadWriteCloser); ok {
		if timer != nil {
			timer.Stop()
		}
		switched = true
		response.Body = &upgradedBody{rw, release}
	} else {
		response.Body = &releasingBody{response.Body, release}
	}
	return response, nil
}

// send sends a request to an endpoint and reads the header of its response.
func (b *Backend) send(request *http.Request, endpoint *balance.Endpoint, silence *silence, policy *Policy) (*http.Response, error) {
	if body, ok := request.Body.(*guardedBody); ok {
		body.sent = silence.sent
	} else {
		silence.sent()
	}
	// The copy is shallow: only the address differs from one attempt to the next.
	target := *request.URL
	target.Scheme = "http"
	if b.TLS != nil {
		target.Scheme = "https"
	}
	target.Host = endpoint.Text()
	request.URL = &target
	response, err := b.transport.roundTrip(request, endpoint, policy.Room)
	if err == nil && response.StatusCode < 100 {
		// The server would panic over it.
		_ = response.Body.Close()
		return nil, errStatus
	}
	return response, err
}

// judge notes what an attempt says about its endpoint. A client that leaves says nothing, nor does one
// that has or sends too much.
func (b *Backend) judge(endpoint *balance.Endpoint, response *http.Response, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errLeft), errors.Is(err, ErrNoRoom),
		errors.Is(err, ErrTooManyStreams), errors.As(err, &tooLarge):
	case err != nil:
		b.Set.Failed(endpoint, time.Now())
	case response.StatusCode == http.StatusBadGateway, response.StatusCode == http.StatusServiceUnavailable,
		response.StatusCode == http.StatusGatewayTimeout:
		b.Set.Failed(endpoint, time.Now())
	default:
		endpoint.Succeeded()
	}
}

type outcome struct {
	response *http.Response
	err      error
	attempts int
	hasBody  bool
	// touched says that part of the body has been read, so it cannot be read again.
	touched bool
}

// again reports whether a request is sent once more.
func (b *Backend) again(request *http.Request, policy *Policy, o outcome) bool {
	if request.Context().Err() != nil || o.touched || errors.Is(o.err, ErrNoRoom) {
		return false
	}
	if o.err == nil {
		// The endpoint has answered that it has not served it.
		return !o.hasBody && o.attempts <= policy.Attempts && slices.Contains(policy.Statuses, uint32(o.response.StatusCode))
	}
	var unsent notEstablished
	switch {
	case errors.Is(o.err, errLeft):
		return repeats(request) && o.attempts < max(b.settings.ConnectAttempts, policy.Attempts+1)
	case errors.As(o.err, &unsent):
		return o.attempts < max(min(b.settings.ConnectAttempts, b.Set.Len()), policy.Attempts+1)
	default:
		return !o.hasBody && idempotent(request.Method) && o.attempts <= policy.Attempts
	}
}

// idempotent methods are those of RFC 9110, section 9.2.2.
func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

func status(response *http.Response) int {
	if response == nil {
		return 0
	}
	return response.StatusCode
}

func wait(ctx context.Context, period time.Duration) bool {
	if period <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(period)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
