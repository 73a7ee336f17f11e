// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
)

const (
	// maxInformational bounds 1xx responses per HTTP/2 request; HTTP/1.1 counts them as header bytes.
	maxInformational = 100
	// untakenInformational is the queue length for a slow client; further responses are dropped.
	untakenInformational = 16
)

var errInformational = errors.New("the backend sends too many informational responses")

// informational forwards 1xx responses in a separate goroutine. net/http calls Got1xxResponse in the HTTP/2
// connection's read loop, where a slow client would block all other streams.
type informational struct {
	request *http.Request
	policy  *Policy

	mutex sync.Mutex
	count int
	// queue and done are nil before the first response; done is closed once the queue is forwarded.
	queue chan informationalResponse
	done  chan struct{}
	ended bool
}

type informationalResponse struct {
	code   int
	header textproto.MIMEHeader
}

// trace returns a context for net/http's transport.
func (i *informational) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: i.receive})
}

func (i *informational) receive(code int, header textproto.MIMEHeader) error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if i.count++; i.count > maxInformational {
		return errInformational
	}
	if i.ended {
		return nil
	}
	if i.queue == nil {
		i.queue, i.done = make(chan informationalResponse, untakenInformational), make(chan struct{})
		go i.deliver()
	}
	select {
	case i.queue <- informationalResponse{code, header}:
	default:
	}
	return nil
}

func (i *informational) deliver() {
	defer close(i.done)
	for each := range i.queue {
		// After an error of the client the request is canceled, too.
		_ = i.policy.inform(i.request, each.code, http.Header(each.header))
	}
}

// end drops later responses and waits until the client has received the queued ones.
func (i *informational) end() {
	i.mutex.Lock()
	queue := i.queue
	if queue != nil && !i.ended {
		close(queue)
	}
	i.ended = true
	i.mutex.Unlock()
	if queue != nil {
		<-i.done
	}
}
