// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/test/harness"
)

const unusedPort = 81

func (d *demo) trace(ctx context.Context) error {
	d.step("What becomes of a packet? The nodes' own programs say, without sending one")
	from, to := netip.AddrPortFrom(harness.ClientIPv4, 40000), netip.AddrPortFrom(d.ipv4, 80)
	return d.showMillrace(ctx, "trace", from.String(), to.String())
}

const dropsTime = 4 * time.Second

func (d *demo) drops(ctx context.Context) error {
	d.step("Packets to a port that the Service does not have: dropped; each is shown with node, Service and reason")
	d.printf("(datagrams from the client to port %d of %s meanwhile)", unusedPort, d.ipv4)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return d.cluster.UnansweredDatagrams(ctx, netip.AddrPortFrom(d.ipv4, unusedPort), dropsTime)
	})
	group.Go(func() error {
		return d.showMillrace(ctx, "drops", "--vip", d.ipv4.String(), "--for", dropsTime.String())
	})
	return group.Wait()
}
