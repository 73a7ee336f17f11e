// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// digest returns the status without numbers, times, messages and single VIPs, which may change with each pass
// during a failure, and without EndpointsHealthy, which changes on all nodes at once.
func digest(status *millracev1beta1.LBNodeReportStatus) *millracev1beta1.LBNodeReportStatus {
	g := status.DeepCopy()
	for i := range g.Interfaces {
		g.Interfaces[i].Message = ""
	}
	for i := range g.Sessions {
		g.Sessions[i].Since, g.Sessions[i].Message = nil, ""
		if g.Sessions[i].BFD != nil {
			g.Sessions[i].BFD = &millracev1beta1.BFDStatus{State: g.Sessions[i].BFD.State}
		}
	}
	g.VIPs.Programmed, g.VIPs.Announced, g.Exceptions = 0, 0, nil
	if len(g.Duplicates) > 0 {
		// Only the presence of duplicates counts, because any host can send with varying addresses.
		g.Duplicates = []millracev1beta1.DuplicateAddress{{}}
	}
	for i := range g.VIPs.Withheld {
		g.VIPs.Withheld[i].Count = 0
	}
	meta.RemoveStatusCondition(&g.Conditions, millracev1beta1.ConditionEndpointsHealthy)
	for i, condition := range g.Conditions {
		g.Conditions[i] = metav1.Condition{Type: condition.Type, Status: condition.Status, Reason: condition.Reason}
	}
	return g
}

// reportHistory contains the digests of recently written reports, at most one per second.
type reportHistory struct {
	digests []digestTime
	last    *millracev1beta1.LBNodeReportStatus
	nodes   int
	// same limits writes of known digests, canaries those with changed canary results. Canary results that only
	// improve are not limited (repaired), since each follows a worse one: the operator aggregates all reports,
	// and a recovered node must not wait for the limits of others.
	same, canaries, repaired limit
}

// limit allows bursts of digestBurst writes and a minimum average interval.
type limit struct {
	// until is the time until which the rate is used up.
	until time.Time
	// due is the time of the pending report, or zero.
	due time.Time
}

// wait returns the time until a report is due: the limit plus jitter, which is chosen once.
func (l *limit) wait(now time.Time, apart, jitter time.Duration) time.Duration {
	if l.due.IsZero() {
		l.due = now.Add(jitter + max(0, l.until.Add(-(digestBurst-1)*apart).Sub(now)))
	}
	return max(0, l.due.Sub(now))
}

func (l *limit) add(now time.Time, apart time.Duration) {
	if l.until.Before(now) {
		l.until = now
	}
	// New digests are written immediately and must not delay later ones beyond a full burst.
	l.until = l.until.Add(apart)
	if latest := now.Add(digestBurst * apart); l.until.After(latest) {
		l.until = latest
	}
}

type digestTime struct {
	digest *millracev1beta1.LBNodeReportStatus
	at     time.Time
}

// spread returns the interval for writes of known digests that limits the cluster to spreadRate writes per
// second, because such changes mostly occur on all nodes at once.
func spread(nodes int) time.Duration {
	return min(maxSpread, time.Duration(nodes)*time.Second/spreadRate)
}

// initialize initializes the history with the report found at the start.
func (t *reportHistory) initialize(found *millracev1beta1.LBNodeReportStatus, now time.Time) {
	if len(t.digests) == 0 {
		t.last = digest(found)
		t.digests = append(t.digests, digestTime{t.last, now})
	}
}

// wait returns the delay of a report; zero means immediately. All known digests share one limit, so that
// alternating states, such as a flapping session, are limited. Canary results have a separate limit.
func (t *reportHistory) wait(digest *millracev1beta1.LBNodeReportStatus, now time.Time, jitter time.Duration) time.Duration {
	if t.index(digest) < 0 {
		return 0
	}
	switch improved, worsened := t.canariesChanged(digest); {
	case improved && !worsened:
		return t.repaired.wait(now, 0, jitter)
	case improved || t.isCanaryChange(digest):
		return t.canaries.wait(now, max(canaryInterval, spread(t.nodes)), jitter)
	}
	return t.same.wait(now, max(knownDigestInterval, spread(t.nodes)), jitter)
}

func (t *reportHistory) isCanaryChange(digest *millracev1beta1.LBNodeReportStatus) bool {
	return t.last != nil && !equality.Semantic.DeepEqual(digest.Sessions, t.last.Sessions) &&
		equality.Semantic.DeepEqual(withoutCanaries(digest.Sessions), withoutCanaries(t.last.Sessions))
}

// canariesChanged reports whether any canary result improved or worsened since the last digest. An unknown
// result is worse, as when the session is down.
func (t *reportHistory) canariesChanged(digest *millracev1beta1.LBNodeReportStatus) (improved, worsened bool) {
	if t.last == nil {
		return false, false
	}
	before, after := canariesOf(t.last.Sessions), canariesOf(digest.Sessions)
	for key, previous := range before {
		now, stays := after[key]
		improved = improved || stays && now.isBetterThan(previous)
		worsened = worsened || previous.isBetterThan(now)
	}
	return improved, worsened
}

type canaryFound struct {
	known          bool
	reached, short []int32
	unanswered     int32
}

func canariesOf(sessions []millracev1beta1.SessionStatus) map[[2]string]canaryFound {
	found := map[[2]string]canaryFound{}
	for i := range sessions {
		for j := range sessions[i].Canaries {
			of := &sessions[i].Canaries[j]
			one := canaryFound{known: of.Unanswered != nil, reached: canary.ParseIDs(of.Reached), short: canary.ParseIDs(of.ReachedBySmallProbes)}
			if one.known {
				one.unanswered = *of.Unanswered
			}
			found[[2]string{sessions[i].Peer, of.Address}] = one
		}
	}
	return found
}

func (f canaryFound) isBetterThan(other canaryFound) bool {
	if !f.known || !other.known {
		return f.known
	}
	lacks := func(all []int32, of []int32) bool {
		return slices.ContainsFunc(of, func(id int32) bool { return !slices.Contains(all, id) })
	}
	return lacks(other.reached, f.reached) || lacks(f.short, other.short) || f.unanswered < other.unanswered
}

func withoutCanaries(sessions []millracev1beta1.SessionStatus) []millracev1beta1.SessionStatus {
	without := slices.Clone(sessions)
	for i := range without {
		without[i].Canaries = nil
	}
	return without
}

func (t *reportHistory) settle() {
	t.same.due, t.canaries.due, t.repaired.due = time.Time{}, time.Time{}, time.Time{}
}

func (t *reportHistory) add(digest *millracev1beta1.LBNodeReportStatus, now time.Time) {
	t.settle()
	t.digests = slices.DeleteFunc(t.digests, func(telling digestTime) bool { return now.Sub(telling.at) > digestMemory })
	if improved, _ := t.canariesChanged(digest); improved || t.isCanaryChange(digest) {
		t.canaries.add(now, max(canaryInterval, spread(t.nodes)))
	} else {
		t.same.add(now, max(knownDigestInterval, spread(t.nodes)))
	}
	t.last = digest
	if i := t.index(digest); i >= 0 {
		t.digests[i].at = now
		return
	}
	t.digests = append(t.digests, digestTime{digest, now})
}

func (t *reportHistory) index(digest *millracev1beta1.LBNodeReportStatus) int {
	return slices.IndexFunc(t.digests, func(telling digestTime) bool { return equality.Semantic.DeepEqual(telling.digest, digest) })
}
