// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package release

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	inmemory "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const (
	// layoutsVariable lists OCI layouts, separated by colons, and makes this program a registry.
	layoutsVariable = "MILLRACE_TEST_LAYOUTS"
	user            = "millrace"
	password        = "secret"
)

// serve serves the layouts' images with a password.
func serve(layouts []string) error {
	images := inmemory.New(inmemory.Logger(log.New(io.Discard, "", 0)))
	// They are pushed to an internal server without password.
	inner := httptest.NewServer(images)
	for _, directory := range layouts {
		if err := push(directory, strings.TrimPrefix(inner.URL, "http://")); err != nil {
			return fmt.Errorf("images of %s: %w", directory, err)
		}
	}
	inner.Close()
	return http.ListenAndServe(registry, http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if given, secret, _ := request.BasicAuth(); given != user || secret != password {
			out.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			out.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(out, request)
	}))
}

func push(directory, host string) error {
	index, err := layout.ImageIndexFromPath(directory)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, descriptor := range manifest.Manifests {
		image, err := index.ImageIndex(descriptor.Digest)
		if err != nil {
			return err
		}
		tag, err := name.NewTag(strings.Replace(descriptor.Annotations["org.opencontainers.image.ref.name"], registry, host, 1))
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(tag, image); err != nil {
			return err
		}
	}
	return nil
}
