// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// mirrorTimeout is the timeout of mirrored requests of rules without a timeout.
const mirrorTimeout = 30 * time.Second

// mirrors limits mirrored requests in flight, a quarter of them per namespace, so that unresponsive
// backends do not affect other tenants.
type mirrors struct {
	limit int

	mutex sync.Mutex
	all   int
	of    map[string]int
}

func newMirrors(limit int) *mirrors { return &mirrors{limit: limit, of: map[string]int{}} }

// tenant returns the namespace of a backend name, "backend/NAMESPACE/SERVICE/PORT".
func tenant(backend string) string {
	rest, named := strings.CutPrefix(backend, "backend/")
	if namespace, _, found := strings.Cut(rest, "/"); named && found {
		return namespace
	}
	return backend
}

func (m *mirrors) acquire(backend string) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	of := tenant(backend)
	if m.all >= m.limit || m.of[of] >= max(m.limit/4, 1) {
		return false
	}
	m.all++
	m.of[of]++
	return true
}

func (m *mirrors) release(backend string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	of := tenant(backend)
	m.all--
	if m.of[of]--; m.of[of] == 0 {
		delete(m.of, of)
	}
}

func (x *transaction) mirrorsOf() []*resource.Mirror {
	if len(x.weighted.filters.mirrors) == 0 {
		return x.rule.filters.mirrors
	}
	return append(x.rule.filters.mirrors[:len(x.rule.filters.mirrors):len(x.rule.filters.mirrors)], x.weighted.filters.mirrors...)
}

// bufferForMirrors returns false after a read error.
func (x *transaction) bufferForMirrors() bool {
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
	// An HTTP/2 body is already accounted.
	if x.in.ProtoMajor == 1 && !x.reserve(x.in.ContentLength) {
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

type replayed struct {
	io.Reader
	io.Closer
}

func (x *transaction) mirror(request *http.Request) {
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
		if !x.proxy.mirrors.acquire(backend.Name) {
			x.proxy.metrics.unmirrored.Inc()
			continue
		}
		timeout := x.rule.timeout
		if timeout == 0 {
			timeout = mirrorTimeout
		}
		// Independent of the client's request and its cancellation.
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
				x.proxy.mirrors.release(backend.Name)
			}()
			// The response is discarded, so nothing is accounted.
			response, _, err := backend.RoundTrip(copied, &upstream.Policy{Room: func(int64) bool { return false }})
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}()
	}
}
