// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// rivalry is a status that others write, too, at a time that passes.
type rivalry struct {
	contest
	now     time.Time
	version int
	ours    bool
	writes  int
}

func (r *rivalry) object() client.Object {
	return &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{
		Name: "web", ResourceVersion: fmt.Sprint(r.version), Annotations: map[string]string{"ours": fmt.Sprint(r.ours)},
	}}
}

func isOurs(object client.Object) bool { return object.GetAnnotations()["ours"] == "true" }

// look is a pass, some time later.
func (r *rivalry) look(later time.Duration) {
	r.now = r.now.Add(later)
	present := r.object()
	pause := r.observe(present, r.now)
	if r.ours {
		r.found(isOurs)
		return
	}
	if pause == 0 {
		r.writes++
		r.wrote(present.GetResourceVersion(), isOurs, r.now)
		r.version, r.ours = r.version+1, true
	}
}

func (r *rivalry) overwrite() { r.version, r.ours = r.version+1, false }

// Writes that answer each of ours get one in half a minute, until they end.
func TestContest(t *testing.T) {
	r := &rivalry{now: time.Unix(1e9, 0)}
	r.look(0)
	for range 600 {
		r.overwrite()
		r.look(100 * time.Millisecond)
	}
	if !r.on || r.writes < contestedAfter || r.writes > 1+contestedAfter+2 {
		t.Errorf("%d writes in a minute, contested: %t", r.writes, r.on)
	}
	r.look(contestPause)
	if !r.ours || !r.on {
		t.Errorf("after a pause the status is ours: %t, contested: %t", r.ours, r.on)
	}
	r.look(contestPause - time.Second)
	if !r.on {
		t.Error("the contest ends within the pause")
	}
	r.look(time.Second)
	if r.on {
		t.Error("the contest does not end")
	}
	before := r.writes
	r.overwrite()
	if r.look(0); r.writes != before+1 {
		t.Error("after the contest the status is not put right at once")
	}
}

// What happens now and then is no contest, nor is a cache that shows what we wrote over.
func TestNoContest(t *testing.T) {
	r := &rivalry{now: time.Unix(1e9, 0)}
	r.look(0)
	for range 20 {
		r.overwrite()
		before := r.writes
		if r.look(contestWindow/2 + time.Second); r.writes != before+1 {
			t.Fatal("not put right")
		}
	}
	r.wrote(fmt.Sprint(r.version), isOurs, r.now)
	r.ours = false
	for range 10 {
		if r.observe(r.object(), r.now); r.isOurs == nil {
			t.Fatal("a version that we wrote over was taken for an answer")
		}
	}
	if r.on {
		t.Error("contested")
	}
}
