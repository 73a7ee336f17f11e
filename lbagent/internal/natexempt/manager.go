// SPDX-License-Identifier: Apache-2.0

package natexempt

import (
	"context"
	"sync/atomic"
	"time"
)

// interval is the interval of checks and of retries.
const interval = 10 * time.Second

// Manager installs the rule and restores it after its removal.
type Manager struct {
	Filter  int
	Changed func(err error)

	// outcome is the result of the last attempt; nil before the first.
	outcome atomic.Pointer[error]
}

// Run maintains the rule until ctx is done. The rule remains installed.
func (k *Manager) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	// A rule of a previous process references that process's program.
	k.set(Install(k.Filter))
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			k.set(k.renew())
		}
	}
}

func (k *Manager) renew() error {
	if installed, err := Installed(); err != nil || installed && k.Err() == nil {
		return err
	}
	return Install(k.Filter)
}

func (k *Manager) set(err error) {
	before := k.outcome.Swap(&err)
	if before == nil || text(*before) != text(err) {
		k.Changed(err)
	}
}

// Err returns the reason why the rule is not installed, or nil.
func (k *Manager) Err() error {
	if outcome := k.outcome.Load(); outcome != nil {
		return *outcome
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
