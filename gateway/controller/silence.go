// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// silenceAfter is above all that is regular: HTTP/2 is pinged every 30 seconds, and a watch over
// HTTP/1.1 has a bookmark every minute.
const silenceAfter = 3 * time.Minute

// withoutSilence closes connections to the API server over which nothing has come for so long. Nobody
// else does over HTTP/1.1: a watch would hang for ever, and other requests go on.
func withoutSilence(config *rest.Config, limit time.Duration) *rest.Config {
	dial := config.Dial
	if dial == nil {
		// As client-go's own.
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	limited := rest.CopyConfig(config)
	limited.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watchedConn{conn, limit}, nil
	}
	return limited
}

// watchedConn fails where nothing comes.
type watchedConn struct {
	net.Conn
	limit time.Duration
}

func (c *watchedConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}
