// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
)

// ErrNoLive is returned if the aggregated API live.millrace.io is not installed.
var ErrNoLive = errors.New("live.millrace.io is not installed")

// Live is a client of the aggregated API. Callers fall back to the agents without it.
type Live struct {
	of        Config
	config    *rest.Config
	client    client.WithWatch
	resources map[string]bool
}

// OpenLive discovers the aggregated API and returns ErrNoLive if it is not installed. The API's warnings
// are written to warnings in kubectl's format.
func OpenLive(ctx context.Context, config Config, warnings io.Writer) (*Live, error) {
	restConfig, err := config.rest()
	if err != nil {
		return nil, explainConfig(err)
	}
	restConfig.WarningHandler = rest.NewWarningWriter(warnings, rest.WarningWriterOptions{Deduplicate: true})
	discoverer, err := discovery.NewDiscoveryClientForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	list, err := discoverer.ServerResourcesForGroupVersion(livev1alpha1.GroupVersion.String())
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case apierrors.IsNotFound(err):
		return nil, ErrNoLive
	case err != nil:
		return nil, fmt.Errorf("%s does not answer: %w", livev1alpha1.GroupVersion.Group, err)
	}
	live := &Live{of: config, config: restConfig, resources: map[string]bool{}}
	for i := range list.APIResources {
		live.resources[list.APIResources[i].Name] = true
	}
	scheme, mapper, err := kinds()
	if err == nil {
		live.client, err = client.NewWithWatch(restConfig, client.Options{Scheme: scheme, Mapper: mapper})
	}
	if err != nil {
		return nil, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	return live, nil
}

// Announcements lists the announcements of all VIPs, or of the named one.
func (l *Live) Announcements(ctx context.Context, name string) (*livev1alpha1.VIPAnnouncementList, error) {
	list := &livev1alpha1.VIPAnnouncementList{}
	var options []client.ListOption
	if name != "" {
		options = append(options, client.MatchingFields{metav1.ObjectNameField: name})
	}
	return list, l.list(ctx, livev1alpha1.ResourceVIPAnnouncements, list, options...)
}

// Sessions lists the sessions of all nodes.
func (l *Live) Sessions(ctx context.Context) (*livev1alpha1.BGPSessionList, error) {
	list := &livev1alpha1.BGPSessionList{}
	return list, l.list(ctx, livev1alpha1.ResourceBGPSessions, list)
}

// Traffic lists the traffic of the Services of a namespace; empty: of all namespaces.
func (l *Live) Traffic(ctx context.Context, namespace string) (*livev1alpha1.ServiceTrafficList, error) {
	list := &livev1alpha1.ServiceTrafficList{}
	return list, l.list(ctx, livev1alpha1.ResourceServiceTraffic, list, client.InNamespace(namespace))
}

func (l *Live) list(ctx context.Context, resource string, list client.ObjectList, options ...client.ListOption) error {
	if !l.resources[resource] {
		return ErrNoLive
	}
	err := l.client.List(ctx, list, options...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if err = l.of.explain(l.config.Host, err); errors.Is(err, ErrForbidden) {
		return err
	}
	return fmt.Errorf("read %s of %s: %w", resource, livev1alpha1.GroupVersion.Group, err)
}

// liveRetry is the retry interval of the watch of announcements.
const liveRetry = 30 * time.Second

// FollowAnnouncements calls changed after each change in the aggregated API until ctx is done.
func FollowAnnouncements(ctx context.Context, config Config, changed func()) {
	config.Timeout = 0
	for watched := false; ctx.Err() == nil; {
		if live, err := OpenLive(ctx, config, io.Discard); err == nil {
			watched = live.follow(ctx, watched, changed) || watched
		}
		_ = wait(ctx, liveRetry)
	}
}

// follow returns when the watch ends, and reports whether it was established. If again is true, it calls
// changed at once, because changes between two watches are unknown.
func (l *Live) follow(ctx context.Context, again bool, changed func()) (watched bool) {
	list, err := l.Announcements(ctx, "")
	if err != nil {
		return false
	}
	events, err := l.client.Watch(ctx, &livev1alpha1.VIPAnnouncementList{}, &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
	})
	if err != nil {
		return false
	}
	defer events.Stop()
	if again {
		changed()
	}
	for range events.ResultChan() {
		changed()
	}
	return true
}
