// SPDX-License-Identifier: Apache-2.0

// Package sysdump collects the data for a bug report into one archive. The archive contains no data of
// Secrets.
package sysdump

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// archive is a tar.gz file for concurrent writers. It ends with a file that lists missing data.
type archive struct {
	mutex    sync.Mutex
	gzip     *gzip.Writer
	tar      *tar.Writer
	now      time.Time
	problems []string
	err      error
}

func newArchive(out io.Writer, now time.Time) *archive {
	compressed := gzip.NewWriter(out)
	return &archive{gzip: compressed, tar: tar.NewWriter(compressed), now: now}
}

// add adds a file; close returns write errors.
func (a *archive) add(name string, content []byte) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.err != nil {
		return
	}
	header := &tar.Header{Name: "millrace-sysdump/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: a.now}
	if a.err = a.tar.WriteHeader(header); a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

func (a *archive) recordFailure(what string, err error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.problems = append(a.problems, fmt.Sprintf("%s: %v", what, err))
}

func (a *archive) close() (missing []string, err error) {
	slices.Sort(a.problems)
	if len(a.problems) > 0 {
		a.add("missing.txt", []byte(strings.Join(a.problems, "\n")+"\n"))
	}
	if err := errors.Join(a.err, a.tar.Close(), a.gzip.Close()); err != nil {
		return nil, fmt.Errorf("write the archive: %w", err)
	}
	return a.problems, nil
}
