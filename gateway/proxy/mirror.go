// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// mirrorTimeout ends a mirrored request whose rule has no time limit.
const mirrorTimeout = 30 * time.Second

func (x *exchange) mirrorsOf() []*resource.Mirror {
	if len(x.share.filters.mirrors) == 0 {
		return x.rule.filters.mirrors
	}
	return append(x.rule.filters.mirrors[:len(x.rule.filters.mirrors):len(x.rule.filters.mirrors)], x.share.filters.mirrors...)
}

// bufferForMirrors reads the body of a request that is sent several times. It reports
// whether it could be read.
func (x *exchange) bufferForMirrors() bool {
	if len(x.mirrorsOf()) == 0 || upgrades(x.in) {
		return true
	}
	if x.in.ContentLength == 0 {
		x.mirrors = true
		return true
	}
	if x.in.ContentLength < 0 || x.in.ContentLength > x.proxy.settings.MaxMirrorBytes {
		x.proxy.metrics.unmirrored.Inc()
		return true
	}
	body := make([]byte, x.in.ContentLength)
	if _, err := io.ReadFull(x.in.Body, body); err != nil {
		x.err = err
		return false
	}
	x.mirrors, x.mirrored = true, body
	x.in.Body = replayed{bytes.NewReader(body), x.in.Body}
	return true
}

// replayed is a body that has been read before.
type replayed struct {
	io.Reader
	io.Closer
}

// mirror sends copies of a request, as the backend gets it, to the backends of mirrors.
func (x *exchange) mirror(request *http.Request) {
	if !x.mirrors {
		return
	}
	for _, mirror := range x.mirrorsOf() {
		if n, of := mirror.GetNumerator(), mirror.GetDenominator(); of > 0 && rand.Uint32N(of) >= n {
			continue
		}
		backend := x.table.backend(mirror.GetBackend())
		if backend == nil || backend.Refuse || backend.Protocol == resource.Backend_TCP {
			continue
		}
		select {
		case x.proxy.mirrors <- struct{}{}:
		default:
			x.proxy.metrics.unmirrored.Inc()
			continue
		}
		timeout := x.rule.timeout
		if timeout == 0 {
			timeout = mirrorTimeout
		}
		// The client does not wait for it, and its leaving does not end it.
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(request.Context()))
		timer := time.AfterFunc(timeout, func() { cancel(upstream.ErrTimeout) })
		copied := request.Clone(ctx)
		copied.Body, copied.GetBody = http.NoBody, nil
		if x.mirrored != nil {
			copied.Body = io.NopCloser(bytes.NewReader(x.mirrored))
		}
		go func() {
			defer func() {
				timer.Stop()
				cancel(errors.New("the mirrored request is done"))
				<-x.proxy.mirrors
			}()
			response, _, err := backend.RoundTrip(copied, &upstream.Policy{})
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}()
	}
}
