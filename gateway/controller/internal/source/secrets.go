// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// secretScope selects the Secrets of one informer: a type in a namespace; "" means all namespaces.
type secretScope struct {
	namespace string
	kind      corev1.SecretType
}

type secretReader struct {
	informer toolscache.SharedIndexInformer
	stop     context.CancelFunc
	// wasDenied is set after the previous review denied the permission.
	wasDenied bool
}

// secrets tracks readable Secrets. Type Opaque is read once an Ingress needs users.
type secrets struct {
	needed chan struct{}
	// needsUsers belongs to the goroutine of Start.
	needsUsers bool

	// Source.mu guards the fields below. hasUsers is set once the Secrets with passwords are read.
	readers         map[secretScope]*secretReader
	ready, hasUsers bool
	// namespaces have readable Secrets; nil means all.
	namespaces map[string]bool
}

// readSecrets adds the Secrets to objects and reports whether all required Secrets have been read.
func (s *Source) readSecrets(objects *model.Objects) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects.SecretNamespaces = s.secrets.namespaces
	for scope, reader := range s.secrets.readers {
		into := &objects.Secrets
		if scope.kind == corev1.SecretTypeOpaque {
			into = &objects.Users
		}
		for _, item := range reader.informer.GetStore().List() {
			if secret, is := item.(*corev1.Secret); is {
				*into = append(*into, secret)
			}
		}
	}
	if s.secrets.hasUsers || !route.NeedsUsers(objects) {
		return s.secrets.ready
	}
	select {
	case s.secrets.needed <- struct{}{}:
	default:
	}
	return false
}

// discoverSecrets starts and stops informers as permissions change. A single denial changes nothing, because an
// API server may not have loaded all bindings after its start.
func (s *Source) discoverSecrets(ctx context.Context) error {
	namespaces, err := s.readableNamespaces(ctx)
	if err != nil {
		return err
	}
	kinds := []corev1.SecretType{corev1.SecretTypeTLS}
	if s.secrets.needsUsers {
		kinds = append(kinds, corev1.SecretTypeOpaque)
	}
	scopes := map[secretScope]bool{}
	for _, kind := range kinds {
		if namespaces == nil {
			scopes[secretScope{kind: kind}] = true
		}
		for namespace := range namespaces {
			scopes[secretScope{namespace, kind}] = true
		}
	}
	s.mu.Lock()
	next := maps.Clone(s.secrets.readers)
	s.mu.Unlock()
	changed := s.startReaders(ctx, scopes, next)
	for scope, reader := range next {
		switch {
		case scopes[scope]:
			reader.wasDenied = false
		case reader.wasDenied:
			s.stopReader(reader)
			delete(next, scope)
			changed = true
		default:
			reader.wasDenied = true
		}
	}
	// Only Secrets of all namespaces delay compilation: one namespace must not delay others.
	isWhole := namespaces != nil || len(next) >= len(kinds)
	s.mu.Lock()
	s.secrets.readers, s.secrets.namespaces = next, readableOf(next, namespaces)
	if isWhole {
		changed = changed || !s.secrets.ready || s.secrets.hasUsers != s.secrets.needsUsers
		s.secrets.ready, s.secrets.hasUsers = true, s.secrets.needsUsers
	}
	s.mu.Unlock()
	if changed {
		s.changes.requestFull()
	}
	return nil
}

func readableOf(readers map[secretScope]*secretReader, permitted map[string]bool) map[string]bool {
	if permitted == nil {
		return nil
	}
	found := maps.Clone(permitted)
	for scope := range readers {
		if scope.namespace == "" {
			return nil
		}
		found[scope.namespace] = true
	}
	return found
}

// startReaders waits for initial lists and reports whether it added any. Failed scopes are retried next period.
func (s *Source) startReaders(ctx context.Context, scopes map[secretScope]bool, readers map[secretScope]*secretReader) bool {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	count := len(readers)
	missing := slices.Collect(maps.Keys(scopes))
	missing = slices.DeleteFunc(missing, func(scope secretScope) bool { return readers[scope] != nil })
	for _, scope := range missing {
		group.Go(func() {
			reader, err := s.startReader(ctx, scope)
			if err != nil {
				if ctx.Err() == nil {
					s.log.Error(err, "read Secrets, retrying", "namespace", scope.namespace)
				}
				return
			}
			mu.Lock()
			readers[scope] = reader
			mu.Unlock()
		})
	}
	group.Wait()
	return len(readers) > count
}

func (s *Source) startReader(ctx context.Context, scope secretScope) (*secretReader, error) {
	informer, err := s.kinds.Secrets(scope.namespace, scope.kind)
	if err == nil {
		_, err = informer.AddEventHandler(s.handler())
	}
	if err != nil {
		return nil, fmt.Errorf("watch Secrets: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	reader := &secretReader{informer: informer, stop: stop}
	s.mu.Lock()
	s.informers = append(s.informers, reader.informer)
	s.mu.Unlock()
	go reader.informer.RunWithContext(ctx)
	waiting, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !toolscache.WaitForCacheSync(waiting.Done(), reader.informer.HasSynced) {
		s.stopReader(reader)
		return nil, errors.New("list Secrets: the API server did not answer in time")
	}
	return reader, nil
}

func (s *Source) stopReader(reader *secretReader) {
	reader.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.informers = slices.DeleteFunc(s.informers, func(i toolscache.SharedIndexInformer) bool { return i == reader.informer })
}

// readableNamespaces reviews namespaces with a RoleBinding named after the ClusterRole; nil means all.
func (s *Source) readableNamespaces(ctx context.Context) (map[string]bool, error) {
	all, err := s.mayList(ctx, "")
	if err != nil || all {
		return nil, err
	}
	bindings := &rbacv1.RoleBindingList{}
	if err := s.kinds.API.List(ctx, bindings, client.MatchingFields{"metadata.name": model.RoleSecrets}); err != nil {
		return nil, fmt.Errorf("list the RoleBindings %s: %w", model.RoleSecrets, err)
	}
	found := map[string]bool{}
	for i := range bindings.Items {
		namespace := bindings.Items[i].Namespace
		may, err := s.mayList(ctx, namespace)
		if err != nil {
			return nil, err
		}
		if may {
			found[namespace] = true
		}
	}
	return found, nil
}

func (s *Source) mayList(ctx context.Context, namespace string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "secrets"},
	}}
	if err := s.kinds.Reviews.Create(ctx, review); err != nil {
		return false, fmt.Errorf("review the permission to list Secrets: %w", err)
	}
	return review.Status.Allowed, nil
}
