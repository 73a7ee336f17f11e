// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// allowMissingRoutes notes that the API server does not have the kind VIPRoute, as during an
// upgrade that renews the agents before the CRDs. Then there is none, and nothing waits for
// them. Of any other error nothing follows: without its VIPRoutes a Service would lose all
// endpoints.
//
// The informer goes on trying, so that it finds the kind once it is installed.
func (s *Source) allowMissingRoutes() error {
	err := s.routes.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			s.routesMissing.Store(true)
			return
		}
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	})
	if err != nil {
		return fmt.Errorf("watch viproutes: %w", err)
	}
	return nil
}

func (s *Source) routesSynced() bool { return s.objects.routes.isSynced() || s.routesMissing.Load() }
