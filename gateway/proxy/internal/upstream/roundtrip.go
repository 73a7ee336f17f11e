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

// Errors of RoundTrip, in addition to those of balance.Pick.
var (
	ErrRefused         = errors.New("the backend's configuration is invalid, so nothing is sent")
	ErrTimeout         = errors.New("the time limit of the request is over")
	ErrNoRoom          = errors.New("no memory is left for the answer")
	errEndpointRemoved = errors.New("the endpoint has left, and had not answered")
)

// Policy configures retries and timeouts of RoundTrip.
type Policy struct {
	// Attempts is the number of retries, Backoff apart, after one of Statuses or a failed attempt.
	Attempts int
	Statuses []uint32
	Backoff  time.Duration
	// Timeout bounds each attempt including the response body; 0 is unlimited.
	Timeout time.Duration
	// ResponseHeaderTimeout bounds the time from the end of the request to the response header; 0 is
	// unlimited.
	ResponseHeaderTimeout time.Duration
	// Prefer is the endpoint of the client's session, or nil.
	Prefer *balance.Endpoint
	// Room accounts header bytes beyond the first 4 KiB; if false, the request fails with ErrNoRoom. May
	// be nil.
	Room func(bytes int64) bool
	// Client is the source address for connection limits; zero if several clients share it.
	Client netip.Addr
	// Informational is called with 1xx responses other than 101, and with 100 only if the request expects it. It
	// may be nil.
	Informational func(status int, header http.Header) error
	// OnAttempt is called with the result of each attempt; it may be nil.
	OnAttempt func(status int, err error)
}

// inform forwards a 1xx response. A 100 that the request did not expect is dropped (RFC 9110, section 15.2).
func (p *Policy) inform(request *http.Request, status int, header http.Header) error {
	if p.Informational == nil || status == http.StatusContinue && request.Header["Expect"] == nil {
		return nil
	}
	return p.Informational(status, header)
}

// Result contains the last endpoint and the number of attempts.
type Result struct {
	Endpoint *balance.Endpoint
	Attempts int
}

// RoundTrip sends a request, retried as policy permits; closing the response body releases the endpoint.
func (b *Backend) RoundTrip(request *http.Request, policy *Policy) (*http.Response, Result, error) {
	if b.Refuse {
		closeBody(request)
		return nil, Result{}, ErrRefused
	}
	body := &guardedBody{ReadCloser: request.Body}
	hasBody := hasBody(request)
	var tried []*balance.Endpoint
	for {
		endpoint, err := b.choose(policy, tried)
		if err != nil {
			return nil, Result{Attempts: len(tried)}, err
		}
		tried = append(tried, endpoint)
		if hasBody {
			request.Body = body
		}
		response, err := b.attempt(request, endpoint, policy)
		if policy.OnAttempt != nil {
			policy.OnAttempt(status(response), err)
		}
		exchange := Result{Endpoint: endpoint, Attempts: len(tried)}
		if !b.shouldRetry(request, policy, attemptResult{response, err, len(tried), hasBody, body.touched.Load()}) {
			return response, exchange, err
		}
		if response != nil {
			// Drain a short rest, so that the connection can be reused.
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
		// The request started with an older configuration.
		set = set.Latest()
	}
	return set.Pick(now, tried)
}

// isRepeatable reports whether a request can be retried although an endpoint may have processed it.
func isRepeatable(request *http.Request) bool { return !hasBody(request) && idempotent(request.Method) }

func (b *Backend) attempt(request *http.Request, endpoint *balance.Endpoint, policy *Policy) (*http.Response, error) {
	switched, end := false, func(bool, time.Time) {}
	if b.transport.isSingle(request) {
		var ok bool
		if end, ok = endpoint.TakeSingle(policy.Client, true, time.Now()); !ok {
			endpoint.Release()
			return nil, unprocessedError{ErrTooManyConnections}
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
	headerTimer := newResponseTimer(endpoint, policy.ResponseHeaderTimeout, isRepeatable(request), cancel)
	response, err := b.send(request.WithContext(ctx), endpoint, headerTimer, policy)
	headerTimer.stopAll()
	if err != nil {
		// Before release, which also cancels the context.
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

func (b *Backend) send(request *http.Request, endpoint *balance.Endpoint, timer *responseTimer, policy *Policy) (*http.Response, error) {
	target := *request.URL
	target.Scheme = "http"
	if b.TLS != nil {
		target.Scheme = "https"
	}
	target.Host = endpoint.Text()
	request.URL = &target
	response, err := b.transport.roundTrip(request, endpoint, policy, timer.requestSent)
	if err == nil && response.StatusCode < 100 {
		// net/http's server panics on such a status code.
		_ = response.Body.Close()
		return nil, errStatus
	}
	return response, err
}

// judge updates passive health; cancellation by the client and exceeded limits do not count.
func (b *Backend) judge(endpoint *balance.Endpoint, response *http.Response, err error) {
	switch {
	case err != nil:
		if isEndpointError(err) {
			b.Set.Failed(endpoint, time.Now())
		}
	case response.StatusCode == http.StatusBadGateway, response.StatusCode == http.StatusServiceUnavailable,
		response.StatusCode == http.StatusGatewayTimeout:
		b.Set.Failed(endpoint, time.Now())
	default:
		endpoint.Succeeded()
	}
}

func isEndpointError(err error) bool {
	var fromClient clientError
	var tooLarge *http.MaxBytesError
	return !errors.Is(err, context.Canceled) && !errors.Is(err, errEndpointRemoved) && !errors.Is(err, ErrNoRoom) &&
		!errors.Is(err, ErrTooManyStreams) && !errors.As(err, &tooLarge) && !errors.As(err, &fromClient)
}

type attemptResult struct {
	response *http.Response
	err      error
	attempts int
	hasBody  bool
	// touched marks a partly read body, which cannot be sent again.
	touched bool
}

// shouldRetry reports whether to retry the request.
func (b *Backend) shouldRetry(request *http.Request, policy *Policy, o attemptResult) bool {
	if request.Context().Err() != nil || o.touched || errors.Is(o.err, ErrNoRoom) {
		return false
	}
	if o.err == nil {
		// A configured status means that the endpoint has not processed the request; any method is retried.
		return !o.hasBody && o.attempts <= policy.Attempts && slices.Contains(policy.Statuses, uint32(o.response.StatusCode))
	}
	var unsent unprocessedError
	switch {
	case errors.Is(o.err, errEndpointRemoved):
		return isRepeatable(request) && o.attempts < max(b.settings.ConnectAttempts, policy.Attempts+1)
	case errors.As(o.err, &unsent):
		return o.attempts < max(min(b.settings.ConnectAttempts, b.Set.Len()), policy.Attempts+1)
	default:
		return !o.hasBody && idempotent(request.Method) && o.attempts <= policy.Attempts
	}
}

// idempotent implements RFC 9110, section 9.2.2.
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
