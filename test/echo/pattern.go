// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
)

// newPattern returns pseudo-random bytes, whose sum detects lost, repeated and moved bytes.
func newPattern(seed, count int64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], uint64(seed))
	return io.LimitReader(rand.NewChaCha8(key), count)
}

func sumOf(r io.Reader) (sum, error) {
	hash := sha256.New()
	count, err := io.Copy(hash, r)
	if err != nil {
		return sum{}, fmt.Errorf("read after %d bytes: %w", count, err)
	}
	return sum{Bytes: count, SHA256: hex.EncodeToString(hash.Sum(nil))}, nil
}
