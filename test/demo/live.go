// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/test/harness"
)

func (d *demo) live(ctx context.Context) (err error) {
	d.step("The present traffic, by kubectl and by RBAC: the aggregated API live.millrace.io")
	if err := d.cluster.InstallLive(ctx); err != nil {
		return err
	}
	d.printf("(50 requests a second from the client to %s meanwhile, and five connections that live)", d.ipv4)
	held, _, err := d.cluster.Hold(ctx, harness.HoldOptions{VIPs: []netip.Addr{d.ipv4}, Flows: 5, Interval: time.Second, Timeout: stepTimeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.End()) }()
	load, err := d.cluster.RequestsWhile(ctx, d.ipv4, 50, func(ctx context.Context) error {
		err := harness.Eventually(ctx, stepTimeout, func(ctx context.Context) error {
			traffic := livev1alpha1.ServiceTraffic{}
			err := d.cluster.Get(ctx, &traffic, "servicetraffic", "echo")
			if err == nil && traffic.Rates.Connections < 40 {
				err = fmt.Errorf("the rates are %+v", traffic.Rates)
			}
			return err
		})
		if err != nil {
			return err
		}
		flows := livev1alpha1.FlowList{}
		if err := d.cluster.Get(ctx, &flows, "flows", "--field-selector=service=echo"); err != nil {
			return err
		}
		if len(flows.Items) < 5 {
			return fmt.Errorf("%d flows are told, want those that live", len(flows.Items))
		}
		for _, args := range [][]string{
			{"servicetraffic", "-A"}, {"vipannouncements"}, {"flows", "--field-selector=service=echo", "--chunk-size=5"},
		} {
			if err := d.show(ctx, append([]string{"kubectl", "get"}, args...)...); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && load.Errors > 0 {
		err = fmt.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
	}
	return err
}
