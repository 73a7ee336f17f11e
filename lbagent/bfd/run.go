// SPDX-License-Identifier: Apache-2.0

// Package bfd implements lbbfd, the process with a node's BFD sessions. It is separate from the agent, so
// that the agent's load delays no packet and its restart resets no session.
package bfd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/engine"
)

const (
	// confirmTimeout bounds the wait for peers to confirm the handover's detection time.
	confirmTimeout = 2 * time.Second
	maxHandover    = 5 * time.Minute
)

// Config configures the process.
type Config struct {
	// Socket is the path of the control socket.
	Socket string
	// State is the path of the file by which sessions are handed over to the next process.
	State string
	// RestartTime is how long peers wait for the next process; zero disables the handover.
	RestartTime time.Duration
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{Socket: control.Socket, State: "/run/millrace-bfd/sessions.json", RestartTime: 30 * time.Second}
}

// Run runs sessions until ctx is done, and then hands them over to the next process.
func Run(ctx context.Context, config Config, logger logr.Logger) error {
	if config.RestartTime < 0 || config.RestartTime > maxHandover {
		return fmt.Errorf("--restart-time is %s, must be between 0 and %s", config.RestartTime, maxHandover)
	}
	sessions, err := engine.New()
	if err != nil {
		return err
	}
	switch saved, err := load(config.State, time.Now()); {
	case err != nil:
		logger.Error(err, "Sessions of the previous process are lost")
	default:
		if err := sessions.Resume(saved); err != nil {
			logger.Error(err, "Some sessions of the previous process are lost")
		}
		logger.Info("Started", "resumed", len(saved))
	}
	if config.RestartTime > 0 {
		if err := reserve(config.State); err != nil {
			logger.Error(err, "Sessions may be lost at the next restart: check free space and write access at --state", "state", config.State)
		}
	}
	defer func() { _ = sessions.Close() }()
	listener, err := control.Listen(config.Socket)
	if err != nil {
		return err
	}
	group, serving := errgroup.WithContext(ctx)
	// Packets are sent until the handover is complete.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return sessions.Run(sending) })
	group.Go(func() error { return control.Serve(serving, listener, sessions, logger) })
	group.Go(func() error {
		defer stop()
		<-serving.Done()
		if ctx.Err() == nil || config.RestartTime == 0 {
			return nil
		}
		settling, cancel := context.WithTimeout(sending, confirmTimeout)
		defer cancel()
		saved := sessions.HandOver(settling, config.RestartTime)
		logger.Info("Ending", "handedOver", len(saved))
		return save(config.State, saved, time.Now().Add(config.RestartTime))
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
