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

// digest is what a report tells without numbers, times, messages and single VIPs: those may
// change with each pass while something fails. It is also without what all nodes find at the same
// moment, ReadinessTrusted.
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
		// That there are any is new, who they are is not: whoever sends decides it.
		g.Duplicates = []millracev1beta1.DuplicateAddress{{}}
	}
	for i := range g.VIPs.Withheld {
		g.VIPs.Withheld[i].Count = 0
	}
	meta.RemoveStatusCondition(&g.Conditions, millracev1beta1.ConditionReadinessTrusted)
	for i, condition := range g.Conditions {
		g.Conditions[i] = metav1.Condition{Type: condition.Type, Status: condition.Status, Reason: condition.Reason}
	}
	return g
}

// told are the digests of the reports that were written not long ago: one a second at most.
type told struct {
	digests []telling
	// last is the digest that was written last; nil where none was.
	last *millracev1beta1.LBNodeReportStatus
	// nodes is how many there are in the cluster.
	nodes int
	// same is for writes that say nothing new, canaries for those among them that tell of canaries.
	// repaired is for those that tell of canaries better things alone. They wait for no limit,
	// since each follows one that told worse. The operator puts the reports of all nodes together:
	// a node that others miss no more must not wait for their limits.
	same, canaries, repaired limit
}

// limit lets digestBurst writes follow each other, and others only one in each time that they are
// to be apart.
type limit struct {
	// until is when the writes are ahead no more of that.
	until time.Time
	// due is when a report is written; zero where none waits.
	due time.Time
}

// wait returns after how long a report is due. It waits for the jitter, too, which begins when the
// limit lets it through.
func (l *limit) wait(now time.Time, apart, jitter time.Duration) time.Duration {
	if l.due.IsZero() {
		l.due = now.Add(jitter + max(0, l.until.Add(-(digestBurst-1)*apart).Sub(now)))
	}
	return max(0, l.due.Sub(now))
}

// add notes a write.
func (l *limit) add(now time.Time, apart time.Duration) {
	if l.until.Before(now) {
		l.until = now
	}
	// What is new is not held up, but neither does it hold up the rest for longer.
	l.until = l.until.Add(apart)
	if latest := now.Add(digestBurst * apart); l.until.After(latest) {
		l.until = latest
	}
}

// telling says when a digest was written last.
type telling struct {
	digest *millracev1beta1.LBNodeReportStatus
	at     time.Time
}

// spread is over how long the nodes of a cluster spread the writes that say nothing new, so that
// all nodes together write a hundred a second: what is news to none is mostly the same change on
// all.
func spread(nodes int) time.Duration {
	return min(longestSpread, time.Duration(nodes)*time.Second/spreadRate)
}

// know takes the report that was found for told, where none was written yet.
func (t *told) know(found *millracev1beta1.LBNodeReportStatus, now time.Time) {
	if len(t.digests) == 0 {
		t.last = digest(found)
		t.digests = append(t.digests, telling{t.last, now})
	}
}

// wait returns after how long a report of this digest is due; zero means at once. All digests that
// were told before share one limit: what goes to and fro, as a session that flaps, says nothing
// new. What tells of canaries has its own, so neither uses up the other's.
func (t *told) wait(digest *millracev1beta1.LBNodeReportStatus, now time.Time, jitter time.Duration) time.Duration {
	if t.index(digest) < 0 {
		return 0
	}
	switch improved, worsened := t.canariesChanged(digest); {
	case improved && !worsened:
		return t.repaired.wait(now, 0, jitter)
	case improved || t.tellsOfCanaries(digest):
		return t.canaries.wait(now, max(sameCanaries, spread(t.nodes)), jitter)
	}
	return t.same.wait(now, max(sameDigest, spread(t.nodes)), jitter)
}

// tellsOfCanaries reports whether a digest differs from the last one in what was found of canaries,
// and not in the sessions that it was found by.
func (t *told) tellsOfCanaries(digest *millracev1beta1.LBNodeReportStatus) bool {
	return t.last != nil && !equality.Semantic.DeepEqual(digest.Sessions, t.last.Sessions) &&
		equality.Semantic.DeepEqual(withoutCanaries(digest.Sessions), withoutCanaries(t.last.Sessions))
}

// canariesChanged reports whether a digest tells better, or worse, of some canary than the last
// one. What is not known any more is worse, as where the session is not established.
func (t *told) canariesChanged(digest *millracev1beta1.LBNodeReportStatus) (improved, worsened bool) {
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

// canaryFound is what of a canary was found; the zero value where nothing was.
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
			one := canaryFound{known: of.Unanswered != nil, reached: canary.ParseIDs(of.Reached), short: canary.ParseIDs(of.ReachedBySmall)}
			if one.known {
				one.unanswered = *of.Unanswered
			}
			found[[2]string{sessions[i].Peer, of.Address}] = one
		}
	}
	return found
}

// isBetterThan reports whether something of it is better.
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

// settle notes that nothing is to be written.
func (t *told) settle() {
	t.same.due, t.canaries.due, t.repaired.due = time.Time{}, time.Time{}, time.Time{}
}

// add notes a report that was written, and forgets the old ones.
func (t *told) add(digest *millracev1beta1.LBNodeReportStatus, now time.Time) {
	t.settle()
	t.digests = slices.DeleteFunc(t.digests, func(telling telling) bool { return now.Sub(telling.at) > digestMemory })
	if improved, _ := t.canariesChanged(digest); improved || t.tellsOfCanaries(digest) {
		t.canaries.add(now, max(sameCanaries, spread(t.nodes)))
	} else {
		t.same.add(now, max(sameDigest, spread(t.nodes)))
	}
	t.last = digest
	if i := t.index(digest); i >= 0 {
		t.digests[i].at = now
		return
	}
	t.digests = append(t.digests, telling{digest, now})
}

func (t *told) index(digest *millracev1beta1.LBNodeReportStatus) int {
	return slices.IndexFunc(t.digests, func(telling telling) bool { return equality.Semantic.DeepEqual(telling.digest, digest) })
}
