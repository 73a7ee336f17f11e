// SPDX-License-Identifier: Apache-2.0

package seed

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
)

// The Secret takes precedence over the pinned maps. A node with neither waits.
func TestChoose(t *testing.T) {
	none, one, two := flowhash.Seed{}, flowhash.Seed{1}, flowhash.Seed{2}
	for name, test := range map[string]struct {
		pinned *flowhash.Seed
		// secret is nil if it cannot be read.
		secret *flowhash.Seed
		hangs  bool
		// waits makes the Secret readable after a minute.
		waits bool
		want  flowhash.Seed
		took  time.Duration
	}{
		"first start":                         {secret: &one, want: one},
		"first start, old installation":       {secret: &none, want: none},
		"restart":                             {pinned: &one, secret: &one, want: one},
		"changed":                             {pinned: &one, secret: &two, want: two},
		"added":                               {pinned: &none, secret: &two, want: two},
		"removed":                             {pinned: &one, secret: &none, want: none},
		"restart without the API server":      {pinned: &one, want: one},
		"restart while the API server hangs":  {pinned: &one, hangs: true, want: one, took: readTimeout},
		"restart, no seed and no API server":  {pinned: &none, want: none},
		"first start without the API server":  {secret: &two, waits: true, want: two, took: time.Minute},
		"first start while nothing is pinned": {secret: &none, waits: true, want: none, took: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				read := func(ctx context.Context) (*tunnelkey.State, error) {
					if test.hangs {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					if test.secret == nil || test.waits && time.Since(began) < time.Minute {
						return nil, errors.New("injected")
					}
					return &tunnelkey.State{Seed: *test.secret}, nil
				}
				got, err := choose(t.Context(), test.pinned, read, logr.Discard())
				if got != test.want || err != nil || time.Since(began) != test.took {
					t.Errorf("%v, error %v after %s; want %v after %s", got, err, time.Since(began), test.want, test.took)
				}
			})
		})
	}
	t.Run("end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err := choose(ctx, nil, func(context.Context) (*tunnelkey.State, error) { return nil, errors.New("injected") }, logr.Discard())
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want context.DeadlineExceeded", err)
			}
		})
	})
}
