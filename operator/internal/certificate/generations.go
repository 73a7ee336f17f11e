// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"time"
)

// generations is how a Secret has certificates that replace each other: those in use, those that
// come into use next and are trusted already, and of those before what is trusted still, since
// somebody may not have read their successors yet.
type generations struct {
	// current, next and previous are the prefixes of keys.
	current, next, previous string
	// files are the rest of the keys, and trusted is the one whose holders are believed.
	files   []string
	trusted string
	// left is for how long files are valid; 0 if they are of no use.
	left func(now time.Time, files map[string][]byte) time.Duration
	make func(now time.Time) (map[string][]byte, error)
}

// renew returns what the Secret must have at a time, and whether that differs from what it has.
// What cannot be read is made again.
func (g generations) renew(now time.Time, data map[string][]byte) (renewed map[string][]byte, changed bool, err error) {
	current, next, previous := g.read(data, g.current), g.read(data, g.next), data[g.previous+g.trusted]
	left := g.left(now, current)
	if left < announcedFor && g.left(now, next) <= announcedFor {
		if next, err = g.make(now); err != nil {
			return nil, false, err
		}
		changed = true
	}
	if left < usedFor {
		previous = current[g.trusted]
		if left <= 0 {
			previous = nil
		}
		current, next = next, nil
		changed = true
	}
	renewed = map[string][]byte{}
	put := func(key string, content []byte) {
		if len(content) > 0 {
			renewed[key] = content
		}
	}
	for _, file := range g.files {
		put(g.current+file, current[file])
		put(g.next+file, next[file])
	}
	put(g.previous+g.trusted, previous)
	return renewed, changed, nil
}

// read returns the files of one generation.
func (g generations) read(data map[string][]byte, prefix string) map[string][]byte {
	files := map[string][]byte{}
	for _, file := range g.files {
		files[file] = data[prefix+file]
	}
	return files
}

// bundle is whom to believe.
func (g generations) bundle(data map[string][]byte) []byte {
	return bytes.Join([][]byte{data[g.current+g.trusted], data[g.next+g.trusted], data[g.previous+g.trusted]}, nil)
}
