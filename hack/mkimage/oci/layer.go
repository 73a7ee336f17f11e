// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"compress/gzip"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// compressed is a layer that is compressed once. The library would compress it in each call.
type compressed struct {
	content, uncompressed []byte
	digest, diffID        v1.Hash
}

var _ v1.Layer = compressed{}

func compress(content []byte) (v1.Layer, error) {
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	if _, err := writer.Write(content); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	layer := compressed{content: out.Bytes(), uncompressed: content}
	var err error
	if layer.digest, _, err = v1.SHA256(bytes.NewReader(layer.content)); err != nil {
		return nil, err
	}
	layer.diffID, _, err = v1.SHA256(bytes.NewReader(content))
	return layer, err
}

func (c compressed) Digest() (v1.Hash, error) { return c.digest, nil }

func (c compressed) DiffID() (v1.Hash, error) { return c.diffID, nil }

func (c compressed) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(c.content)), nil
}

func (c compressed) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(c.uncompressed)), nil
}

func (c compressed) Size() (int64, error) { return int64(len(c.content)), nil }

func (c compressed) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
