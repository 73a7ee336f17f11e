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
	// maxInformational is how many informational answers a request may have over HTTP/2. Over
	// HTTP/1.1 they count as header.
	maxInformational = 100
	// untakenInformational is how many of them wait for the client. Beyond, they are dropped.
	untakenInformational = 16
)

var errInformational = errors.New("the backend sends informational answers without end")

// informational is a context that has the informational answers of a request over HTTP/2 (103, say)
// go to the client in a goroutine of its own. net/http gives them to whoever reads the connection:
// a client that takes nothing would hold up the answers of all others.
type informational struct {
	context.Context
	trace *httptrace.ClientTrace
	// to is whoever wants them.
	to func(code int, header textproto.MIMEHeader) error

	mutex sync.Mutex
	count int
	// queue is there from the first one on, and done is closed when all of it has been given.
	queue chan answer
	done  chan struct{}
	ended bool
}

type answer struct {
	code   int
	header textproto.MIMEHeader
}

func newInformational(ctx context.Context) *informational {
	i := &informational{Context: ctx, trace: httptrace.ContextClientTrace(ctx)}
	if i.trace != nil && i.trace.Got1xxResponse != nil {
		copied := *i.trace
		i.to, copied.Got1xxResponse = i.trace.Got1xxResponse, i.got
		i.trace = &copied
	}
	return i
}

// Value implements context.Context. There is one trace, and httptrace can only add to it.
func (i *informational) Value(key any) any {
	value := i.Context.Value(key)
	if _, ok := value.(*httptrace.ClientTrace); ok {
		return i.trace
	}
	return value
}

func (i *informational) got(code int, header textproto.MIMEHeader) error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if i.count++; i.count > maxInformational {
		return errInformational
	}
	if i.ended {
		return nil
	}
	if i.queue == nil {
		i.queue, i.done = make(chan answer, untakenInformational), make(chan struct{})
		go i.give()
	}
	select {
	case i.queue <- answer{code, header}:
	default:
	}
	return nil
}

func (i *informational) give() {
	defer close(i.done)
	for each := range i.queue {
		// The client's end ends the request, too.
		_ = i.to(each.code, each.header)
	}
}

// end waits until the client has taken what waits for it. Nothing follows.
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
