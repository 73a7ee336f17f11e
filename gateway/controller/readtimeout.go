// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// readTimeout exceeds all regular intervals: HTTP/2 pings every 30 seconds, watch bookmarks over HTTP/1.1
// every minute.
const readTimeout = 3 * time.Minute

// withReadTimeout sets a read timeout on connections to the API server. Over HTTP/1.1 a watch on a dead
// connection would hang forever.
func withReadTimeout(config *rest.Config, limit time.Duration) *rest.Config {
	dial := config.Dial
	if dial == nil {
		// The defaults of client-go.
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	limited := rest.CopyConfig(config)
	limited.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &timeoutConn{conn, limit}, nil
	}
	return limited
}

// timeoutConn fails reads after limit without data.
type timeoutConn struct {
	net.Conn
	limit time.Duration
}

func (c *timeoutConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}
