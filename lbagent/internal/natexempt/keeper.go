// SPDX-License-Identifier: Apache-2.0

package natexempt

import (
	"context"
	"sync/atomic"
	"time"
)

// interval is how often the rule is looked for, and how soon a failure is tried again.
const interval = 10 * time.Second

// Keeper puts the rule in place, and again where others took it away.
type Keeper struct {
	// Filter is the descriptor that Install gets.
	Filter int
	// Changed is called when the outcome has changed.
	Changed func(err error)

	// outcome is nil before the first try.
	outcome atomic.Pointer[error]
}

// Run keeps the rule until ctx is done. The rule stays.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	// A rule of a previous process has the filter of that one.
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

func (k *Keeper) renew() error {
	if installed, err := Installed(); err != nil || installed && k.Err() == nil {
		return err
	}
	return Install(k.Filter)
}

func (k *Keeper) set(err error) {
	before := k.outcome.Swap(&err)
	if before == nil || text(*before) != text(err) {
		k.Changed(err)
	}
}

// Err is why the rule is not in place.
func (k *Keeper) Err() error {
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
