// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

// sessionTime bounds the return of a session with another password.
const sessionTime = 30 * time.Second

// Each node has two sessions with each router. During a password change both carry both families, so that
// one has all routes while the other is down (docs/bgp.md).
const (
	protected   = `{"spec":{"families":["IPv4","IPv6"],"passwordSecretRef":{"name":"first"}}}`
	unprotected = `{"spec":{"families":null,"passwordSecretRef":null}}`
)

func secret(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: millrace-bgp, name: %s}
stringData: {password: the-%s-password}
`, name, name)
}

func protectSessions(ctx context.Context, r *run) error {
	for _, name := range []string{"first", "second"} {
		if err := r.Apply(ctx, secret(name)); err != nil {
			return err
		}
	}
	if err := patchPeers(protected)(ctx, r); err != nil {
		return err
	}
	for _, host := range routers {
		for _, ipv6 := range []bool{false, true} {
			if err := r.routers.password(ctx, r, host, ipv6, "the-first-password"); err != nil {
				return err
			}
		}
	}
	return r.rolled(ctx, peerNames()...)
}

// rollPasswords changes the passwords of one session per router at a time.
func rollPasswords(ctx context.Context, r *run) error {
	for _, host := range routers {
		for _, ipv6 := range []bool{false, true} {
			if err := r.routers.password(ctx, r, host, ipv6, "the-second-password"); err != nil {
				return err
			}
			name := peerName(host, ipv6)
			if err := r.patchPeers(ctx, `{"spec":{"passwordSecretRef":{"name":"second"}}}`, name); err != nil {
				return err
			}
			if err := r.rolled(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// rolled waits until the sessions of LBPeers are established and the routers have all routes.
func (r *run) rolled(ctx context.Context, names ...string) error {
	return harness.Eventually(ctx, sessionTime, func(ctx context.Context) error {
		sessions, err := r.sessions(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := established(sessions, name); err != nil {
				return err
			}
		}
		for _, host := range routers {
			paths, err := r.routers.paths(ctx, r, host, r.vip)
			if err != nil {
				return err
			}
			if want := 2 * len(nodes); paths != want {
				return fmt.Errorf("%s has %d routes of %s, want %d", host, paths, r.vip, want)
			}
		}
		return nil
	})
}

func unprotectSessions(ctx context.Context, r *run) error {
	for _, host := range routers {
		for _, ipv6 := range []bool{false, true} {
			if err := r.routers.password(ctx, r, host, ipv6, ""); err != nil {
				return err
			}
		}
	}
	return all(patchPeers(unprotected),
		kubectl("-n", "millrace-bgp", "delete", "secret", "first", "second", "--ignore-not-found"))(ctx, r)
}
