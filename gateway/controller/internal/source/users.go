// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/millrace-lb/millrace/gateway/route"
)

// users are the Secrets with passwords. They are read once an Ingress names one, and not before:
// other Secrets are none of a gateway's business. The cache, which is apart, begins then.
type users struct {
	cache cache.Cache
	// needed has an element when they are to be read.
	needed chan struct{}
	// isBegun says that the cache runs. Start alone uses it.
	isBegun bool
	// kind has no indexer before all have been read.
	kind kind
}

func newUsers(from cache.Cache) users {
	return users{
		cache: from, needed: make(chan struct{}, 1),
		kind: read(&corev1.Secret{}, func(o *route.Objects) *[]*corev1.Secret { return &o.Users }),
	}
}

// readUsers adds the Secrets with passwords to objects, where they are needed, and reports whether
// they are there.
func (s *Source) readUsers(objects *route.Objects) bool {
	if !route.NeedsUsers(objects) {
		return true
	}
	s.mu.Lock()
	from := s.users.kind
	s.mu.Unlock()
	if from.indexer != nil {
		from.read(from.indexer, objects)
		return true
	}
	select {
	case s.users.needed <- struct{}{}:
	default:
	}
	return false
}

// beginUsers begins to read the Secrets with passwords, and waits until all are there. Nothing is
// compiled before: Ingresses that need them would be refused.
func (s *Source) beginUsers(ctx context.Context) error {
	s.mu.Lock()
	isRead := s.users.kind.indexer != nil
	s.mu.Unlock()
	if isRead {
		return nil
	}
	if !s.users.isBegun {
		s.users.isBegun = true
		go func() {
			if err := s.users.cache.Start(ctx); err != nil {
				s.log.Error(err, "reading Secrets with passwords")
			}
		}()
	}
	indexer, err := s.watch(ctx, s.users.cache, &corev1.Secret{}, s.handler())
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !s.users.cache.WaitForCacheSync(waiting) {
		return errors.New("read Secrets with passwords: not all have come in time")
	}
	s.mu.Lock()
	s.users.kind.indexer = indexer
	s.mu.Unlock()
	s.changes.compile()
	return nil
}

// needUsers is beginUsers, again and again where it fails.
func (s *Source) needUsers(ctx context.Context) {
	if err := s.beginUsers(ctx); err != nil && ctx.Err() == nil {
		s.log.Error(fmt.Errorf("begin to read Secrets with passwords: %w", err), "nothing new is compiled before, trying again")
		s.changes.compile()
	}
}
