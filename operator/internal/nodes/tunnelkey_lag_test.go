// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"sync"
	"testing"
)

// Conditions are written by a bounded number of workers, and each error is returned.
func TestConditionsAreWrittenAtOnce(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	full := make(chan struct{})
	failure := errors.New("the API server does not answer")
	writes := make([]func() error, 5*workers)
	for i := range writes {
		writes[i] = func() error {
			mu.Lock()
			running++
			if most = max(most, running); running == workers {
				select {
				case <-full:
				default:
					close(full)
				}
			}
			mu.Unlock()
			// All workers must be busy before the first write returns.
			<-full
			mu.Lock()
			defer mu.Unlock()
			running--
			if i == len(writes)-1 {
				return failure
			}
			return nil
		}
	}
	if err := allOf(writes); !errors.Is(err, failure) {
		t.Errorf("error after one failed write = %v", err)
	}
	if most != workers {
		t.Errorf("%d concurrent writes, want %d", most, workers)
	}
}
