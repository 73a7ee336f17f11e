// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/conflict"
)

func gatewayOf(version int, owner string) client.Object {
	return &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{
		Name: "web", ResourceVersion: fmt.Sprint(version), Annotations: map[string]string{"owner": owner},
	}}
}

func isOurs(object client.Object) bool { return object.GetAnnotations()["owner"] == "ours" }

// TestStaleCacheIsNoConflict checks that a stale cache is not reported as a write of another controller.
func TestStaleCacheIsNoConflict(t *testing.T) {
	var c conflictState
	now := time.Unix(1e9, 0)
	c.previous = "1"
	c.RecordWrite(isOurs, now)
	for range 2 * conflict.Overwrites {
		c.observe(gatewayOf(1, "theirs"), now)
	}
	if c.Contested() {
		t.Error("contested although the conflicting version was already overwritten")
	}
	for version := range conflict.Overwrites {
		c.observe(gatewayOf(2+version, "theirs"), now)
		c.RecordWrite(isOurs, now)
	}
	if !c.Contested() {
		t.Error("newer conflicting versions are not detected")
	}
}

// TestConflictIsReportedWithTheNextWrite checks that the pass after the detection writes the condition.
func TestConflictIsReportedWithTheNextWrite(t *testing.T) {
	var c conflictState
	now := time.Unix(1e9, 0)
	for version := range conflict.Overwrites {
		c.RecordWrite(isOurs, now)
		pause := c.observe(gatewayOf(version, "theirs"), now)
		if last := version == conflict.Overwrites-1; last != (pause > 0) {
			t.Errorf("conflict %d: pause of %s", version+1, pause)
		}
	}
	if pause := c.observe(gatewayOf(conflict.Overwrites, "theirs"), now); pause != 0 {
		t.Errorf("the next pass is delayed by %s", pause)
	}
}
