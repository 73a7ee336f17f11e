// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Pause returns the pause after a call of the given duration.
type Pause func(took time.Duration) time.Duration

// NoPause is for calls without requests to the cluster.
func NoPause(time.Duration) time.Duration { return 0 }

// Watch calls each with the input of a report, at once and after changes, until ctx is done, when it
// returns nil, or each returns an error. Changes while each runs, and during the rest after it, cause one
// call. With announcements it also follows the aggregated API.
func Watch(ctx context.Context, config Config, rest Pause, announcements bool, each func(*report.Input) error) error {
	// An error of reading a list is returned, while informers would retry forever.
	in, err := Read(ctx, config)
	if err != nil {
		return ignoreCancelled(ctx, err)
	}
	if in.Sole != "" || len(in.Omitted) > 0 {
		return errWatch
	}
	kinds := inputKinds()
	w := &watcher{config: config, changed: make(chan struct{}, 1)}
	if err := w.open(); err != nil {
		return err
	}
	group, watching := errgroup.WithContext(ctx)
	group.Go(func() error { return w.cache.Start(watching) })
	group.Go(func() error { return w.refused(watching) })
	if announcements {
		group.Go(func() error {
			FollowAnnouncements(watching, config, w.notify)
			return nil
		})
	}
	group.Go(func() error {
		if err := w.follow(watching, kinds); err != nil {
			return err
		}
		return repeat(watching, w.changed, rest, func() error {
			now := in
			in = nil
			if now == nil {
				var err error
				if now, err = w.read(watching, kinds); err != nil {
					return err
				}
			}
			return each(now)
		})
	})
	return ignoreCancelled(ctx, group.Wait())
}

func repeat(ctx context.Context, changed <-chan struct{}, rest Pause, each func() error) error {
	for {
		start := time.Now()
		if err := each(); err != nil {
			return err
		}
		if err := wait(ctx, rest(time.Since(start))); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		// Changes come in groups: a Service, its VIP and its endpoints.
		if err := wait(ctx, coalesceTime); err != nil {
			return err
		}
		select {
		case <-changed:
		default:
		}
	}
}

func wait(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}

func ignoreCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type watcher struct {
	config  Config
	host    string
	cache   cache.Cache
	changed chan struct{}
	refusal chan error
}

// coalesceTime is the wait for further changes after a change.
const coalesceTime = 200 * time.Millisecond

func (w *watcher) open() error {
	restConfig, err := w.config.rest()
	if err != nil {
		return explainConfig(err)
	}
	// The time limit of requests must not apply to watches.
	restConfig.Timeout = 0
	w.host = restConfig.Host
	scheme, mapper, err := kinds()
	if err != nil {
		return err
	}
	w.refusal = make(chan error, 1)
	w.cache, err = cache.New(restConfig, cache.Options{
		Scheme: scheme, Mapper: mapper,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Namespaces: map[string]cache.Config{w.config.Namespace: {}}},
		},
		DefaultWatchErrorHandler: w.failed,
		DefaultTransform:         cache.TransformStripManagedFields(),
	})
	if err != nil {
		return fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	return nil
}

// failed records permanent errors; informers retry others.
func (w *watcher) failed(_ context.Context, _ *toolscache.Reflector, err error) {
	if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsNotFound(err) {
		return
	}
	select {
	case w.refusal <- err:
	default:
	}
}

func (w *watcher) refused(ctx context.Context) error {
	select {
	case err := <-w.refusal:
		return w.config.explain(w.host, err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *watcher) follow(ctx context.Context, kinds []inputKind) error {
	for _, kind := range kinds {
		informer, err := w.cache.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch at %s: %w", w.host, err)
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.notify() },
			UpdateFunc: func(any, any) { w.notify() },
			DeleteFunc: func(any) { w.notify() },
		})
		if err != nil {
			return fmt.Errorf("watch at %s: %w", w.host, err)
		}
	}
	return nil
}

func (w *watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// read returns the shared cached objects, which must not be modified, once caches are synced.
func (w *watcher) read(ctx context.Context, kinds []inputKind) (*report.Input, error) {
	if !w.cache.WaitForCacheSync(ctx) {
		return nil, ctx.Err()
	}
	in, err := read(ctx, w.cache, w.config.Namespace, kinds, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, w.config.explain(w.host, err)
	}
	return in, nil
}
