// SPDX-License-Identifier: Apache-2.0

// Package gatewayapi validates objects against the CRDs of Gateway API in config/gateway-api.
package gatewayapi

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/millrace-lb/millrace/config/crd"
)

//go:embed standard/gateway.networking.k8s.io_*.yaml experimental/gateway.networking.k8s.io_*.yaml
var files embed.FS

// Channels of Gateway API. Experimental is a superset of Standard, with fields that may still change.
const (
	Standard     = "standard"
	Experimental = "experimental"
)

// Group is the API group of all kinds.
const Group = "gateway.networking.k8s.io"

// Kinds caches parsed CRDs, because parsing is slow.
type Kinds struct {
	read map[string]map[schema.GroupVersionKind]*crd.Kind
}

// Problems returns the errors of creating an object with the CRDs of a channel, and applies defaults.
// Unknown kinds and versions are errors.
func (k *Kinds) Problems(channel string, object *unstructured.Unstructured) ([]string, error) {
	name := object.GroupVersionKind()
	kind, err := k.kind(channel, name)
	if err != nil {
		return nil, err
	}
	if kind == nil {
		return []string{fmt.Sprintf("there is no kind %s of %s", name.Kind, name.GroupVersion())}, nil
	}
	return kind.Problems(object), nil
}

func (k *Kinds) kind(channel string, name schema.GroupVersionKind) (*crd.Kind, error) {
	file := path.Join(channel, Group+"_"+plural(name.Kind)+".yaml")
	kinds, is := k.read[file]
	if !is {
		content, err := files.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err == nil {
			kinds, err = crd.Parse(content)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if k.read == nil {
			k.read = map[string]map[schema.GroupVersionKind]*crd.Kind{}
		}
		k.read[file] = kinds
	}
	return kinds[name], nil
}

func plural(kind string) string {
	lower := strings.ToLower(kind)
	if stem, is := strings.CutSuffix(lower, "y"); is && !strings.HasSuffix(lower, "ay") {
		return stem + "ies"
	}
	if strings.HasSuffix(lower, "s") {
		return lower + "es"
	}
	return lower + "s"
}
