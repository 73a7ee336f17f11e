// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
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

var errInformational = errors.New("the backend sends informational answers without end")

// informational is a context that forwards 1xx responses in a separate goroutine. net/http calls Got1xxResponse
// in the HTTP/2 connection's read loop, where a slow client would block all other streams.
type informational struct {
	context.Context
	trace *httptrace.ClientTrace
	// to is the caller's Got1xxResponse.
	to func(code int, header textproto.MIMEHeader) error

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

func newInformational(ctx context.Context) *informational {
	i := &informational{Context: ctx, trace: httptrace.ContextClientTrace(ctx)}
	if i.trace != nil && i.trace.Got1xxResponse != nil {
		copied := *i.trace
		i.to, copied.Got1xxResponse = i.trace.Got1xxResponse, i.receive
		i.trace = &copied
	}
	return i
}

// Value replaces the trace of the parent context.
func (i *informational) Value(key any) any {
	value := i.Context.Value(key)
	if _, ok := value.(*httptrace.ClientTrace); ok {
		return i.trace
	}
	return value
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
		_ = i.to(each.code, each.header)
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
