// SPDX-License-Identifier: Apache-2.0

// Package bfd is the process that holds a node's BFD sessions. It is not the agent, so that
// the agent's work delays no packet, and an agent that restarts loses no session.
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
	// settleTime is how long the process, when it ends, waits for peers to agree to wait.
	settleTime = 2 * time.Second
	// longestHandOver is the most that RestartTime can be.
	longestHandOver = 5 * time.Minute
)

// Config of the process.
type Config struct {
	// Socket is the path at which the agent asks.
	Socket string
	// State is the path of a file in which sessions are handed over to the next process.
	State string
	// RestartTime is how long peers wait for the next process, when this one ends as
	// planned. 0: they do not.
	RestartTime time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Socket: control.Socket, State: "/run/millrace-bfd/sessions.json", RestartTime: 30 * time.Second}
}

// Run holds sessions until ctx is done, and hands them over to the next process then.
func Run(ctx context.Context, config Config, logger logr.Logger) error {
	if config.RestartTime < 0 || config.RestartTime > longestHandOver {
		return fmt.Errorf("--restart-time is %s, must be between 0 and %s", config.RestartTime, longestHandOver)
	}
	sessions, err := engine.New()
	if err != nil {
		return err
	}
	switch saved, err := load(config.State, time.Now()); {
	case err != nil:
		logger.Error(err, "Sessions of the process before are lost")
	default:
		if err := sessions.Resume(saved); err != nil {
			logger.Error(err, "Sessions of the process before are lost in part")
		}
		logger.Info("Started", "resumed", len(saved))
	}
	if config.RestartTime > 0 {
		if err := reserve(config.State); err != nil {
			logger.Error(err, "Sessions may be lost at the next restart: look for room and write access where --state is", "state", config.State)
		}
	}
	defer func() { _ = sessions.Close() }()
	listener, err := control.Listen(config.Socket)
	if err != nil {
		return err
	}
	group, asked := errgroup.WithContext(ctx)
	// Packets are sent on while sessions are handed over.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return sessions.Run(sending) })
	group.Go(func() error { return control.Serve(asked, listener, sessions, logger) })
	group.Go(func() error {
		defer stop()
		<-asked.Done()
		if ctx.Err() == nil || config.RestartTime == 0 {
			return nil
		}
		settling, cancel := context.WithTimeout(sending, settleTime)
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
