// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// gist is what a report tells without numbers, times, messages and single VIPs: those may
// change with each pass while something fails.
func gist(status *millracev1alpha1.LBNodeReportStatus) *millracev1alpha1.LBNodeReportStatus {
	g := status.DeepCopy()
	for i := range g.Interfaces {
		g.Interfaces[i].Message = ""
	}
	for i := range g.Sessions {
		g.Sessions[i].Since, g.Sessions[i].Message = nil, ""
		if g.Sessions[i].BFD != nil {
			g.Sessions[i].BFD = &millracev1alpha1.BFDStatus{State: g.Sessions[i].BFD.State}
		}
	}
	g.VIPs.Programmed, g.VIPs.Announced, g.Exceptions = 0, 0, nil
	for i := range g.VIPs.Withheld {
		g.VIPs.Withheld[i].Count = 0
	}
	for i, condition := range g.Conditions {
		g.Conditions[i] = metav1.Condition{Type: condition.Type, Status: condition.Status, Reason: condition.Reason}
	}
	return g
}

// told are the gists of the reports that were written not long ago: one a second at most.
type told []telling

// telling says how far the writes of one gist are ahead of one in each sameGist.
type telling struct {
	gist *millracev1alpha1.LBNodeReportStatus
	// until is when they are ahead no more.
	until time.Time
}

// wait returns after how long a report of this gist is due; zero means at once.
func (t told) wait(gist *millracev1alpha1.LBNodeReportStatus, now time.Time) time.Duration {
	if i := t.index(gist); i >= 0 {
		return max(0, t[i].until.Add(-(gistBurst-1)*sameGist).Sub(now))
	}
	return 0
}

// add notes a report that was written, and forgets the old ones.
func (t *told) add(gist *millracev1alpha1.LBNodeReportStatus, now time.Time) {
	*t = slices.DeleteFunc(*t, func(telling telling) bool { return !telling.until.After(now) })
	if i := t.index(gist); i >= 0 {
		(*t)[i].until = (*t)[i].until.Add(sameGist)
		return
	}
	*t = append(*t, telling{gist, now.Add(sameGist)})
}

func (t told) index(gist *millracev1alpha1.LBNodeReportStatus) int {
	return slices.IndexFunc(t, func(telling telling) bool { return equality.Semantic.DeepEqual(telling.gist, gist) })
}
