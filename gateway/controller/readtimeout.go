// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// readTimeout exceeds the intervals of HTTP/2 pings (30 s) and of watch bookmarks over HTTP/1.1 (1 min).
const readTimeout = 3 * time.Minute

// withReadTimeout ends connections to a dead API server. Over HTTP/1.1 a watch would otherwise hang forever.
func withReadTimeout(config *rest.Config, limit time.Duration) *rest.Config {
	dial := config.Dial
	if dial == nil {
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
