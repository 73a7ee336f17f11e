// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Heartbeats are also sent without VIPs on links.
func TestHeartbeatWithoutLinks(t *testing.T) {
	beaten := make(chan struct{}, 1)
	heartbeat := NewHeartbeat(func() error {
		select {
		case beaten <- struct{}{}:
		default:
		}
		return nil
	}, func() error { return nil })
	answerer := NewController(heartbeat, nil, nil, logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- answerer.Run(ctx) }()
	answerer.Apply(&model.Model{}, nil, nil)
	<-beaten
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
