// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scopedReader lists objects of one namespace if the user may not list those of the whole cluster. Lists of
// kinds that the user may not list at all are empty.
type scopedReader struct {
	client.Reader
	namespace string

	mu sync.Mutex
	// restricted are kinds that were read in the namespace only, omitted are unread kinds.
	restricted, omitted map[string]error
}

// scoped uses the namespace of the command line, or else of the context.
func (c Config) scoped(reader client.Reader) (*scopedReader, error) {
	namespace := c.Scope
	if namespace == "" {
		var err error
		if namespace, err = CurrentNamespace(c); err != nil {
			return nil, err
		}
	}
	return &scopedReader{Reader: reader, namespace: namespace, restricted: map[string]error{}, omitted: map[string]error{}}, nil
}

// List implements client.Reader.
func (s *scopedReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	denied := s.Reader.List(ctx, list, options...)
	if !apierrors.IsForbidden(denied) {
		return denied
	}
	into := s.restricted
	own := (&client.ListOptions{}).ApplyOptions(options).Namespace
	err := denied
	if own == "" {
		err = s.Reader.List(ctx, list, append(slices.Clone(options), client.InNamespace(s.namespace))...)
	}
	if apierrors.IsForbidden(err) {
		into, err = s.omitted, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	into[kindOfList(list)] = denied
	return err
}

// kindOfList returns the plural of the kind, such as IngressClasses.
func kindOfList(list client.ObjectList) string {
	name := fmt.Sprintf("%T", list)
	name = strings.TrimSuffix(name[strings.LastIndex(name, ".")+1:], "List")
	switch {
	case strings.HasSuffix(name, "s"):
		return name + "es"
	case strings.HasSuffix(name, "y") && !strings.HasSuffix(name, "ay"):
		return strings.TrimSuffix(name, "y") + "ies"
	}
	return name + "s"
}

// sole returns the namespace if not all Services could be read, and otherwise "".
func (s *scopedReader) sole() string {
	if s.restricted["Services"] != nil {
		return s.namespace
	}
	return ""
}

// omittedKinds returns the kinds that were not read, sorted.
func (s *scopedReader) omittedKinds() []string { return slices.Sorted(maps.Keys(s.omitted)) }

// errNoRights explains that Services cannot be read, in the cluster and in the namespace; nil if they can.
func (s *scopedReader) errNoRights(config Config, host string) error {
	denied := s.omitted["Services"]
	if denied == nil {
		return nil
	}
	return fmt.Errorf("%w; for namespace %s alone, ClusterRole view, bound there", config.explain(host, denied), s.namespace)
}

// errWatch is returned by --watch without the rights for the whole cluster.
var errWatch = errors.New("--watch requires ClusterRole millrace-viewer, bound for the whole cluster")
