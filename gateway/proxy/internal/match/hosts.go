// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"iter"
	"maps"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Hosts finds the most specific value of a hostname: the exact name, the longest wildcard (single-label before
// multi-label), the catch-all. The zero value is empty. It may be shared once complete.
type Hosts[T any] struct {
	exact  map[string]T
	label  map[string]T
	labels map[string]T
	all    []T
}

// Add adds the value of a hostname. It returns an error if there already is one.
func (h *Hosts[T]) Add(hostname *resource.Hostname, value T) error {
	name := hostname.GetName()
	if name == "" {
		if len(h.all) > 0 {
			return fmt.Errorf("two values for all host names")
		}
		h.all = []T{value}
		return nil
	}
	names := h.names(hostname)
	if names == nil {
		return fmt.Errorf("wildcard %v of %s is not known", hostname.GetWildcard(), name)
	}
	if _, ok := (*names)[name]; ok {
		return fmt.Errorf("two values for host name %s (%v)", name, hostname.GetWildcard())
	}
	if *names == nil {
		*names = map[string]T{}
	}
	(*names)[name] = value
	return nil
}

func (h *Hosts[T]) names(hostname *resource.Hostname) *map[string]T {
	switch hostname.GetWildcard() {
	case resource.Hostname_NONE:
		return &h.exact
	case resource.Hostname_ONE_LABEL:
		return &h.label
	case resource.Hostname_LABELS:
		return &h.labels
	}
	return nil
}

// Clone returns a copy that can be modified while the original is in use.
func (h *Hosts[T]) Clone() Hosts[T] {
	return Hosts[T]{maps.Clone(h.exact), maps.Clone(h.label), maps.Clone(h.labels), h.all}
}

// Remove deletes the value of a hostname.
func (h *Hosts[T]) Remove(hostname *resource.Hostname) {
	if hostname.GetName() == "" {
		h.all = nil
	} else if names := h.names(hostname); names != nil {
		delete(*names, hostname.GetName())
	}
}

// Replace replaces the value of a hostname.
func (h *Hosts[T]) Replace(hostname *resource.Hostname, value T) {
	if hostname.GetName() == "" {
		h.all = []T{value}
	} else if names := h.names(hostname); names != nil {
		(*names)[hostname.GetName()] = value
	}
}

// All yields hostnames as in API objects, with "?" for "*" in a single-label wildcard.
func (h *Hosts[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for prefix, names := range map[string]map[string]T{"": h.exact, "?.": h.label, "*.": h.labels} {
			for name, value := range names {
				if !yield(prefix+name, value) {
					return
				}
			}
		}
		if len(h.all) > 0 {
			yield("", h.all[0])
		}
	}
}

// Find returns the most specific value for a normalized hostname.
func (h *Hosts[T]) Find(host string) (found T, ok bool) {
	if found, ok = h.exact[host]; ok {
		return found, true
	}
	if len(h.label) > 0 || len(h.labels) > 0 {
		if found, ok = h.findWildcard(host); ok {
			return found, true
		}
	}
	if len(h.all) > 0 {
		return h.all[0], true
	}
	return found, false
}

func (h *Hosts[T]) findWildcard(host string) (value T, ok bool) {
	first, suffix, found := strings.Cut(host, ".")
	if !found || first == "" {
		return value, false
	}
	if value, ok = h.label[suffix]; ok {
		return value, true
	}
	for found {
		if value, ok = h.labels[suffix]; ok {
			return value, true
		}
		_, suffix, found = strings.Cut(suffix, ".")
	}
	return value, false
}
