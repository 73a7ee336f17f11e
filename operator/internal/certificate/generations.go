// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"time"
)

// generations describes a Secret with certificates that replace each other: the current ones, their successors,
// which are trusted already, and their predecessors, which are still trusted because some clients may not have
// read the successors yet.
type generations struct {
	// current, next and previous are prefixes of keys.
	current, next, previous string
	// files are the suffixes of keys; trusted is the file that goes into the trust bundle.
	files   []string
	trusted string
	// left returns how long files are valid, or 0 if they are invalid.
	left func(now time.Time, files map[string][]byte) time.Duration
	make func(now time.Time) (map[string][]byte, error)
}

// renew returns the desired content of the Secret, and whether it differs from data. Invalid content is
// replaced.
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

// bundle returns the trusted certificates of all generations.
func (g generations) bundle(data map[string][]byte) []byte {
	return bytes.Join([][]byte{data[g.current+g.trusted], data[g.next+g.trusted], data[g.previous+g.trusted]}, nil)
}
