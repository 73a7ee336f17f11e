// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// The Secret decides, without it what is pinned. A node with neither waits, and never guesses.
func TestChooseSeed(t *testing.T) {
	none, one, two := flowhash.Seed{}, flowhash.Seed{1}, flowhash.Seed{2}
	for name, test := range map[string]struct {
		pinned *flowhash.Seed
		// secret is nil where it cannot be read.
		secret *flowhash.Seed
		hangs  bool
		// waits is where the Secret can be read a minute later.
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
		"restart while the API server hangs":  {pinned: &one, hangs: true, want: one, took: seedPatience},
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
						return nil, errInjected
					}
					return &tunnelkey.State{Seed: *test.secret}, nil
				}
				seed, err := chooseSeed(t.Context(), test.pinned, read, logr.Discard())
				if seed != test.want || err != nil || time.Since(began) != test.took {
					t.Errorf("%v, error %v after %s; want %v after %s", seed, err, time.Since(began), test.want, test.took)
				}
			})
		})
	}
	t.Run("end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err := chooseSeed(ctx, nil, func(context.Context) (*tunnelkey.State, error) { return nil, errInjected }, logr.Discard())
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want the end of the agent", err)
			}
		})
	})
}

// Another seed in the Secret is told as long as it is there, and changes nothing.
func TestOtherSeed(t *testing.T) {
	maps := &keyMaps{}
	tunnel := newTunnel(maps)
	tunnel.seed = flowhash.Seed{1}
	key := tunnelkey.New(1)
	for _, test := range []struct {
		name    string
		secret  model.TunnelSecret
		differs bool
	}{
		{"the same", seeded(flowhash.Seed{1}, key), false},
		{"another", seeded(flowhash.Seed{2}, key), true},
		{"none", seeded(flowhash.Seed{}, key), true},
		{"no Secret", model.TunnelSecret{}, false},
		{"not read", model.TunnelSecret{Err: errInjected}, false},
		{"the same again", seeded(flowhash.Seed{1}, key), false},
	} {
		observed, err := tunnel.update(test.secret)
		if err != nil || (observed.OtherSeed != "") != test.differs {
			t.Errorf("%s: observed %+v, error %v; differs: %t", test.name, observed, err, test.differs)
		}
	}
}

func seeded(seed flowhash.Seed, key tunnelkey.Key) model.TunnelSecret {
	secret := secretOf(tunnelkey.Steady, 1, key)
	secret.State.Seed = seed
	return secret
}
