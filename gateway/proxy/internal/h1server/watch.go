// SPDX-License-Identifier: Apache-2.0

package h1server

import (
	"sync"
	"time"
)

// watchAfter is the duration of a request after which the connection is read, to detect its end.
const watchAfter = 50 * time.Millisecond

// pastTime is a deadline that interrupts a pending read.
var pastTime = time.Unix(1, 0)

// watch cancels the context of a connection's request if the client closes the connection.
type watch struct {
	conn  *conn
	timer *time.Timer

	mutex     sync.Mutex
	cond      sync.Cond
	isActive  bool
	isReading bool
	isStopped bool
}

func (w *watch) init(c *conn) {
	w.conn, w.cond.L = c, &w.mutex
}

// start is called before a request's handler, which must not read the connection.
func (w *watch) start() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.isActive, w.isStopped = true, false
	if w.timer == nil {
		w.timer = time.AfterFunc(watchAfter, w.read)
	} else {
		w.timer.Reset(watchAfter)
	}
}

// read reads into the free part of the buffer until the client sends its next request or closes the connection.
func (w *watch) read() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	c := w.conn
	if !w.isActive || w.isReading || len(c.buffer) == cap(c.buffer) {
		return
	}
	w.isReading = true
	_ = c.Conn.SetReadDeadline(time.Time{})
	w.mutex.Unlock()
	n, err := c.Conn.Read(c.buffer[len(c.buffer):cap(c.buffer)])
	w.mutex.Lock()
	c.buffer = c.buffer[:len(c.buffer)+n]
	if err != nil && !w.isStopped {
		c.cancel()
	}
	w.isReading = false
	w.cond.Broadcast()
}

// stop returns the buffer to the caller after a pending read.
func (w *watch) stop() {
	w.timer.Stop()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.isActive = false
	if w.isReading {
		w.isStopped = true
		_ = w.conn.Conn.SetReadDeadline(pastTime)
	}
	for w.isReading {
		w.cond.Wait()
	}
}
