// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// New VIPs have small node tables while no agent that has reported is of a version before those.
func TestRowsCensus(t *testing.T) {
	report := func(node, version string, minRows int32) *millracev1beta1.LBNodeReport {
		r := &millracev1beta1.LBNodeReport{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Status:     millracev1beta1.LBNodeReportStatus{Version: version, MinRows: minRows},
		}
		// The census sees what the cache keeps.
		stripped, err := TransformReport(r)
		if err != nil {
			t.Fatal(err)
		}
		return stripped.(*millracev1beta1.LBNodeReport)
	}
	c, ctx := newRowsCensus(), context.Background()
	check := func(step string, want int32) {
		t.Helper()
		if got := c.least(); got != want {
			t.Errorf("%s: %d, want %d", step, got, want)
		}
	}
	update := func(r *millracev1beta1.LBNodeReport) {
		c.Update(ctx, event.TypedUpdateEvent[*millracev1beta1.LBNodeReport]{ObjectNew: r}, nil)
	}
	check("no node", 512)
	c.Create(ctx, event.TypedCreateEvent[*millracev1beta1.LBNodeReport]{Object: report("a", "", 0)}, nil)
	check("an agent that has not begun", 512)
	update(report("a", "v0.2.0", 512))
	check("it knows them", 512)
	c.Create(ctx, event.TypedCreateEvent[*millracev1beta1.LBNodeReport]{Object: report("b", "v0.1.0", 0)}, nil)
	check("another one is older", 0)
	update(report("b", "v0.2.0", 512))
	check("it was upgraded", 512)
	update(report("a", "v0.1.0", 0))
	check("one was downgraded", 0)
	c.Delete(ctx, event.TypedDeleteEvent[*millracev1beta1.LBNodeReport]{Object: report("a", "v0.1.0", 0)}, nil)
	check("its node has gone", 512)
	update(report("b", "v0.3.0", 1024))
	check("one knows none as small", 0)
}
