// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

const redial = time.Second

// Client is the agent's end. It sends the wanted sessions after each change and connection.
type Client struct {
	path    string
	changed chan struct{}
	updated chan struct{}

	mu     sync.Mutex
	want   Want
	report Report
	// err is the reason why the process is unreachable, or nil.
	err error
}

// NewClient returns a client for the socket at path.
func NewClient(path string) *Client {
	return &Client{
		path: path, changed: make(chan struct{}, 1), updated: make(chan struct{}, 1),
		err: fmt.Errorf("no response from the BFD process yet at %s", path),
	}
}

// Changed returns a channel that receives a value after the report changed.
func (c *Client) Changed() <-chan struct{} { return c.changed }

// Set replaces the wanted sessions.
func (c *Client) Set(want Want) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !reflect.DeepEqual(c.want, want) {
		c.want = want
		notify.Signal(c.updated)
	}
}

// Report returns the last report, and the reason why the process is unreachable, if any.
func (c *Client) Report() (Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report, c.err
}

// Run communicates with the process until ctx is done. It waits for Set, because a process retains its
// sessions without an agent.
func (c *Client) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.updated:
		notify.Signal(c.updated)
	}
	for {
		err := c.exchange(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.fail(fmt.Errorf("no response from the BFD process: %w", err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(redial):
		}
	}
}

func (c *Client) exchange(ctx context.Context) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", c.path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	go func() {
		defer cancel()
		for encoder := json.NewEncoder(connection); ; {
			c.mu.Lock()
			want := c.want
			c.mu.Unlock()
			if err := encoder.Encode(want); err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-c.updated:
			}
		}
	}()
	for decoder := json.NewDecoder(connection); ; {
		var report Report
		if err := decoder.Decode(&report); err != nil {
			return err
		}
		c.mu.Lock()
		c.report, c.err = report, nil
		c.mu.Unlock()
		notify.Signal(c.changed)
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	logged := c.err != nil && c.err.Error() == err.Error()
	c.err = err
	c.mu.Unlock()
	if !logged {
		notify.Signal(c.changed)
	}
}
