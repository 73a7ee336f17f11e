// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

// orderEvery is the interval for reading the programs on the uplinks, which have no change events.
const orderEvery = 30 * time.Second

// tcxOrder detects programs of other owners that tcx runs before Millrace's program, so that they process
// replies first.
type tcxOrder struct {
	problemText
}

func (f *tcxOrder) observe(programs map[string][]string) (changed bool) {
	var found []string
	for _, uplink := range slices.Sorted(maps.Keys(programs)) {
		found = append(found, uplink+": "+strings.Join(programs[uplink], ", "))
	}
	return f.set(strings.Join(found, "; "))
}

func (f *tcxOrder) run(
	ctx context.Context, read func() (map[string][]string, error), changed func(), logger logr.Logger,
) error {
	return watchEvery(ctx, orderEvery, func() (bool, error) {
		programs, err := read()
		return err == nil && f.observe(programs), err
	}, changed, logger)
}

func (f *tcxOrder) problems() []string {
	if f.text() == "" {
		return nil
	}
	return []string{fmt.Sprintf("other programs see replies before the one of Millrace (%s): a reply that they take keeps the "+
		"pod's address, and its client drops it; have them attached behind it (docs/cni.md)", f.text())}
}
