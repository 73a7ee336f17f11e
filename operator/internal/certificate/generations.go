// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"time"
)

// generations describes a Secret with current certificates, their successors, which clients trust already,
// and predecessors, which some clients still need.
type generations struct {
	current, next, previous string
	files                   []string
	trusted                 string
	remaining               func(now time.Time, files map[string][]byte) time.Duration
	make                    func(now time.Time) (map[string][]byte, error)
}

// renew returns the Secret, with invalid content replaced, and whether it differs from data.
func (g generations) renew(now time.Time, data map[string][]byte) (renewed map[string][]byte, changed bool, err error) {
	current, next, previous := g.read(data, g.current), g.read(data, g.next), data[g.previous+g.trusted]
	left := g.remaining(now, current)
	if left < announcedFor && g.remaining(now, next) <= announcedFor {
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

func (g generations) read(data map[string][]byte, prefix string) map[string][]byte {
	files := map[string][]byte{}
	for _, file := range g.files {
		files[file] = data[prefix+file]
	}
	return files
}

func (g generations) bundle(data map[string][]byte) []byte {
	return bytes.Join([][]byte{data[g.current+g.trusted], data[g.next+g.trusted], data[g.previous+g.trusted]}, nil)
}
