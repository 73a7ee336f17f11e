// SPDX-License-Identifier: Apache-2.0

// Package gatewayapi holds objects against the CRDs of Gateway API, as config/gateway-api installs them.
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

// Channels of Gateway API's release. The second has all of the first, and fields that may still change.
const (
	Standard     = "standard"
	Experimental = "experimental"
)

// Group is that of all its kinds.
const Group = "gateway.networking.k8s.io"

// Kinds are those that objects were held against: each takes long to read.
type Kinds struct {
	read map[string]map[schema.GroupVersionKind]*crd.Kind
}

// Problems returns what an API server with the CRDs of a channel would say of an object that is created.
// It fills the object in with defaults. A kind, or a version, that the channel does not have is a problem.
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

// kind returns a kind of a channel; nil where there is none.
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

// plural is the name of a kind's resource.
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
