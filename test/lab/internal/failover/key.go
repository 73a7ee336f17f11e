// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"fmt"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// keyTime bounds the rotation of the tunnel key, which has two phases of at least five seconds.
const keyTime = 40 * time.Second

// replaceKey runs kubectl to make the operator rotate the tunnel key and waits until every node uses only
// the new one.
func replaceKey(arguments ...string) action {
	return func(ctx context.Context, r *run) error {
		before, err := r.newestKey(ctx)
		if err != nil {
			return err
		}
		if err := kubectl(append([]string{"-n", "millrace-system"}, arguments...)...)(ctx, r); err != nil {
			return err
		}
		return harness.Eventually(ctx, keyTime, func(ctx context.Context) error {
			reports, err := r.reports(ctx)
			if err != nil {
				return err
			}
			return keyReplaced(reports, before)
		})
	}
}

func (r *run) reports(ctx context.Context) ([]millracev1beta1.LBNodeReport, error) {
	var list millracev1beta1.LBNodeReportList
	err := r.Get(ctx, &list, "lbnodereports")
	return list.Items, err
}

func (r *run) newestKey(ctx context.Context) (newest int64, err error) {
	reports, err := r.reports(ctx)
	for i := range reports {
		if keys := reports[i].Status.TunnelKeys; keys != nil {
			newest = max(newest, keys.Sending)
		}
	}
	return newest, err
}

// keyReplaced returns an error unless all nodes send a later key, require tags, and accept no other key.
func keyReplaced(reports []millracev1beta1.LBNodeReport, than int64) error {
	if len(reports) < len(nodes) {
		return fmt.Errorf("%d nodes report, want %d", len(reports), len(nodes))
	}
	for i := range reports {
		keys := reports[i].Status.TunnelKeys
		if keys == nil || keys.Sending <= than || !keys.Required || len(keys.Accepted) != 1 {
			return fmt.Errorf("%s has the tunnel's keys %+v, want one later than %d", reports[i].Name, keys, than)
		}
	}
	return nil
}
