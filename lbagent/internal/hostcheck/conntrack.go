// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
)

const (
	conntrackDir = "/proc/sys/net/netfilter"
	// fullThreshold is the percentage of the limit at which the table is reported, clearThreshold the one
	// below which it is not.
	fullThreshold, clearThreshold = 90, 80
)

type conntrackTable struct {
	problemText
}

func (c *conntrackTable) observe(count, limit uint64) (changed bool) {
	switch {
	case count*100 < limit*clearThreshold || limit == 0:
		return c.set("")
	case count*100 >= limit*fullThreshold:
		return c.set(strconv.FormatUint(limit, 10))
	}
	return false
}

func (c *conntrackTable) run(ctx context.Context, changed func(), logger logr.Logger) error {
	return watchCounter(ctx, func() (bool, error) {
		count, limit, err := readConntrack(conntrackDir)
		return err == nil && c.observe(count, limit), err
	}, changed, logger)
}

func (c *conntrackTable) problems() []string {
	if c.text() == "" {
		return nil
	}
	return []string{fmt.Sprintf("the kernel's connection table is filled to 90 %% of its limit of %s: when it is full, the kernel drops "+
		"packets of new connections to pods; raise net.netfilter.nf_conntrack_max, or see `conntrack -L` for the connections", c.text())}
}

// readConntrack returns the size of the connection table and its limit, which are 0 if the kernel
// tracks no connections.
func readConntrack(dir string) (count, limit uint64, err error) {
	for name, value := range map[string]*uint64{"nf_conntrack_count": &count, "nf_conntrack_max": &limit} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return 0, 0, nil
		}
		if err == nil {
			*value, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read the size of the connection table: %w", err)
		}
	}
	return count, limit, nil
}
