// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Copy copies changes from the API server to the log until the context ends.
func Copy(ctx context.Context, config *rest.Config, log *Log, logger logr.Logger) error {
	// Request protobuf, because the log retains slices in this encoding.
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for EndpointSlices: %w", err)
	}
	listed := cache.NewFilteredListWatchFromClient(clients.DiscoveryV1().RESTClient(), "endpointslices",
		metav1.NamespaceAll, func(*metav1.ListOptions) {})
	cache.NewReflectorWithOptions(observed{listed, log}, &discoveryv1.EndpointSlice{}, &store{log, logger}, cache.ReflectorOptions{}).
		RunWithContext(ctx)
	return nil
}

// observed records in the log whether the API server is reachable.
type observed struct {
	cache.ListerWatcherWithContext
	log *Log
}

func (o observed) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := o.ListerWatcherWithContext.ListWithContext(ctx, options)
	o.log.Connected(err == nil, time.Now())
	return list, err
}

func (o observed) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	watched, err := o.ListerWatcherWithContext.WatchWithContext(ctx, options)
	o.log.Connected(err == nil, time.Now())
	return watched, err
}

// List and Watch implement cache.ListerWatcher; the reflector uses the methods with a context.
func (o observed) List(options metav1.ListOptions) (runtime.Object, error) {
	return o.ListWithContext(context.Background(), options)
}

func (o observed) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return o.WatchWithContext(context.Background(), options)
}

// store is the reflector's store. Encoding errors are only logged, because slices from the API server can be
// encoded.
type store struct {
	log    *Log
	logger logr.Logger
}

var (
	_ cache.ReflectorStore         = &store{}
	_ cache.ResourceVersionUpdater = &store{}
)

func (s *store) Add(object any) error    { return each(object, s.log.Put) }
func (s *store) Update(object any) error { return each(object, s.log.Put) }
func (s *store) Delete(object any) error { return each(object, s.log.Delete) }

func each(object any, do func(*discoveryv1.EndpointSlice) error) error {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return fmt.Errorf("%T is not an EndpointSlice", object)
	}
	return do(slice)
}

func (s *store) Replace(objects []any, resourceVersion string) error {
	list := make([]*discoveryv1.EndpointSlice, 0, len(objects))
	for _, object := range objects {
		if err := each(object, func(slice *discoveryv1.EndpointSlice) error {
			list = append(list, slice)
			return nil
		}); err != nil {
			return err
		}
	}
	s.logger.Info("Listed EndpointSlices", "count", len(list), "resourceVersion", resourceVersion)
	return s.log.Replace(list, resourceVersion)
}

func (s *store) Resync() error { return nil }

func (s *store) UpdateResourceVersion(resourceVersion string) {
	if err := s.log.Bookmark(resourceVersion); err != nil {
		s.logger.Error(err, "Failed to parse a bookmark of the API server")
	}
}
