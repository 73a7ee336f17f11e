// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
)

type transmitDrops struct {
	vethTransmit bool
	problemText

	counters map[string]*recentCounter
}

func (u *transmitDrops) observe(drops []dataplane.UplinkTransmitDrops, now time.Time) (changed bool) {
	counters := map[string]*recentCounter{}
	var found []string
	for _, drop := range drops {
		for reason, count := range map[string]uint64{"transmit": drop.Transmit, "redirect": drop.Redirect} {
			key := fmt.Sprintf("%s (%s)", drop.Interface, reason)
			counter := u.counters[key]
			if counter == nil {
				counter = &recentCounter{}
			}
			counters[key] = counter
			counter.observe(count, now)
			if counter.reported.Load() {
				found = append(found, key)
			}
		}
	}
	u.counters = counters
	slices.Sort(found)
	return u.set(strings.Join(found, ", "))
}

func (u *transmitDrops) run(
	ctx context.Context, read func() ([]dataplane.UplinkTransmitDrops, error), changed func(), logger logr.Logger,
) error {
	return watchCounter(ctx, func() (bool, error) {
		drops, err := read()
		return err == nil && u.observe(drops, time.Now()), err
	}, changed, logger)
}

func (u *transmitDrops) problems(uncounted error) []string {
	var found []string
	if text := u.text(); text != "" {
		message := fmt.Sprintf("in the last %s drivers dropped frames that XDP transmitted on %s, usually because their rings were full: see millrace_uplink_transmit_drops_total, and raise the rings (ethtool -G IFACE tx N)", recentWindow, text)
		if u.vethTransmit {
			message += "; with --veth-transmit, the other end of a veth may run no XDP program"
		}
		found = append(found, message)
	}
	if uncounted != nil {
		found = append(found, fmt.Sprintf("transmit drops of drivers are not counted: %v", uncounted))
	}
	return found
}
