// SPDX-License-Identifier: Apache-2.0

package cachesync

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
)

// asked counts the calls of a Gate.
type asked struct {
	*Gate
	confirms, passes, told int
	answer                 time.Duration
}

func newAsked() *asked {
	a := &asked{answer: 100 * time.Millisecond}
	wait := func(count *int, answer *time.Duration) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			*count++
			select {
			case <-ctx.Done():
				return errors.Join(errors.New("injected"), ctx.Err())
			case <-time.After(*answer):
				return nil
			}
		}
	}
	const pass = 10 * time.Millisecond
	passTime := pass
	a.Gate = New(wait(&a.confirms, &a.answer), wait(&a.passes, &passTime), funcr.New(func(string, string) { a.told++ }, funcr.Options{}))
	return a
}

func (a *asked) takes(ctx context.Context) time.Duration {
	began := time.Now()
	a.Wait(ctx)
	return time.Since(began)
}

// Stale objects are confirmed and applied before routes are announced. Concurrent sessions share a
// confirmation.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked()
		a.MarkCurrent()
		if took := a.takes(t.Context()); took != 0 || a.confirms != 0 {
			t.Errorf("initially: waited %s, %d queries", took, a.confirms)
		}
		time.Sleep(maxAge)
		var routers sync.WaitGroup
		for range 5 {
			routers.Go(func() {
				if took := a.takes(t.Context()); took != 110*time.Millisecond {
					t.Errorf("waited %s", took)
				}
			})
		}
		routers.Wait()
		if a.confirms != 1 || a.passes != 1 || a.told != 0 {
			t.Errorf("%d queries, %d passes, %d reports", a.confirms, a.passes, a.told)
		}
	})
}

// Without the API server a session waits for checkpoint.StartTimeout.
func TestGateWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked()
		a.answer = time.Hour
		if took := a.takes(t.Context()); took != checkpoint.StartTimeout || a.told != 1 || a.passes != 0 {
			t.Errorf("waited %s, %d reports, %d passes", took, a.told, a.passes)
		}
		if took := a.takes(t.Context()); took != 0 {
			t.Errorf("the next router waited %s", took)
		}
		time.Sleep(maxAge)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if took := a.takes(ctx); took != time.Second || a.told != 1 {
			t.Errorf("canceled session: waited %s, %d reports", took, a.told)
		}
		if a.takes(t.Context()); a.confirms != 3 {
			t.Errorf("%d queries, want 3: an interrupted query does not count", a.confirms)
		}
	})
}
