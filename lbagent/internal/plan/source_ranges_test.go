// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// restricted returns the frontend with sources 198.51.n.0/24.
func restricted(f model.Frontend, numbers ...int) model.Frontend {
	f.Restricted, f.Sources = true, nil
	for _, n := range numbers {
		f.Sources = append(f.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(n), 0}), 24))
	}
	return f
}

func admitted(s *forwarding.State, key forwarding.FrontendKey) string {
	set := s.Frontends[key].Ranges
	if set == 0 {
		return "everybody"
	}
	var prefixes []netip.Prefix
	for source := range s.SourceRanges {
		if source.Set == set {
			prefixes = append(prefixes, source.Prefix)
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return fmt.Sprint(prefixes)
}

func asksFor(f *model.Frontend) string {
	if !f.Restricted {
		return "everybody"
	}
	return fmt.Sprint(f.Sources)
}

func TestEqualListsShareASet(t *testing.T) {
	other := restricted(frontend(2, "other", 2), 1, 2)
	six := restricted(frontend(3, "web"))
	six.Key.VIP = netip.MustParseAddr("2001:db8::1")
	six.Sources = []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}
	m := modelOf(restricted(frontend(1, "web", 1), 1, 2), other, six, restricted(frontend(4, "nobody")), frontend(5, "all"))
	state, problems := advance(t, NewPlanner(forwarding.NewState()), forwarding.NewState(), m, ample)
	if len(problems) != 0 {
		t.Errorf("problems = %v, want none", problems)
	}
	if a, b := state.Frontends[key(1)].Ranges, state.Frontends[key(2)].Ranges; a == 0 || a != b {
		t.Errorf("equal lists have different sets %d and %d", a, b)
	}
	if len(state.SourceRanges) != 3 {
		t.Errorf("%d prefixes were written, want 3: %v", len(state.SourceRanges), state.SourceRanges)
	}
	if got := state.Frontends[key(4)].Ranges; got != forwarding.NoSources {
		t.Errorf("set of a list without prefixes = %d, want the empty set", got)
	}
	if got := state.Frontends[key(5)].Ranges; got != 0 {
		t.Errorf("set of a Service without a list = %d, want 0", got)
	}
}

func TestChangedListIsANewSet(t *testing.T) {
	p, empty := NewPlanner(forwarding.NewState()), forwarding.NewState()
	have, _ := advance(t, p, empty, modelOf(restricted(frontend(1, "web", 1), 1, 2)), ample)
	want, _ := p.Plan(have, modelOf(restricted(frontend(1, "web", 1), 2, 3)), ample)
	before, after := have.Frontends[key(1)].Ranges, want.Frontends[key(1)].Ranges
	if before == after {
		t.Fatalf("set %d was modified while the frontend uses it", before)
	}
	additions, _ := forwarding.Split(forwarding.Diff(have, want))
	both := forwarding.Apply(have, additions)
	if len(both.SourceRanges) != 4 || admitted(both, key(1)) != "[198.51.2.0/24 198.51.3.0/24]" {
		t.Errorf("before the removals: the frontend admits %s, sources %v", admitted(both, key(1)), both.SourceRanges)
	}
	// Revert before the old list is removed, while it is still valid.
	back, _ := p.Plan(both, modelOf(restricted(frontend(1, "web", 1), 1, 2)), ample)
	if got := back.Frontends[key(1)].Ranges; got != before {
		t.Errorf("set of the previous list = %d, want %d", got, before)
	}
}

func TestHalfWrittenListIsCompleted(t *testing.T) {
	p, have := NewPlanner(forwarding.NewState()), forwarding.NewState()
	m := modelOf(restricted(frontend(1, "web", 1), 1, 2, 3))
	want, _ := p.Plan(have, m, ample)
	set := want.Frontends[key(1)].Ranges
	for _, op := range forwarding.Diff(have, want) {
		have = forwarding.Apply(have, []forwarding.Op{op})
		if len(have.SourceRanges) == 2 {
			break
		}
	}
	again, _ := p.Plan(have, m, ample)
	if got := again.Frontends[key(1)].Ranges; got != set || len(again.SourceRanges) != 3 {
		t.Errorf("set of the list = %d of %v, want %d", got, again.SourceRanges, set)
	}
	// A partially written list must not be allocated to another list, even if their content is momentarily
	// equal.
	second := restricted(frontend(2, "other", 2), 1, 2)
	m.Frontends = append(m.Frontends, &second)
	m.VIPs = append(m.VIPs, model.VIP{Address: vipNumber(2)})
	again, _ = p.Plan(have, m, ample)
	if admitted(again, key(1)) == admitted(again, key(2)) || again.Frontends[key(1)].Ranges == again.Frontends[key(2)].Ranges {
		t.Errorf("two different lists share set %d", again.Frontends[key(1)].Ranges)
	}
}

func TestSourceRangesThatDoNotFit(t *testing.T) {
	limits := ample
	limits.SourceRanges = 3
	p, have := NewPlanner(forwarding.NewState()), forwarding.NewState()
	have, problems := advance(t, p, have, modelOf(restricted(frontend(1, "web", 1), 1, 2), restricted(frontend(2, "new", 2), 3, 4)), limits)
	if hasFrontend(have, 2) || admitted(have, key(1)) != "[198.51.1.0/24 198.51.2.0/24]" {
		t.Errorf("frontends = %v: the second must not be served with a partial list", have.Frontends)
	}
	checkFull(t, problems, forwarding.SourceRanges, "new")

	// A list that does not fit in addition to its predecessor closes the frontend until the predecessor is
	// removed.
	changed := modelOf(restricted(frontend(1, "web", 1), 5, 6))
	have, problems = advance(t, p, have, changed, limits)
	if have.Frontends[key(1)].Ranges != forwarding.NoSources {
		t.Errorf("the frontend admits %s, want no clients", admitted(have, key(1)))
	}
	checkFull(t, problems, forwarding.SourceRanges, "web")
	have, problems = advance(t, p, have, changed, limits)
	if len(problems) != 0 || admitted(have, key(1)) != "[198.51.5.0/24 198.51.6.0/24]" {
		t.Errorf("the frontend admits %s, problems %v", admitted(have, key(1)), problems)
	}
}

// TestSourceRangesDuringUpdate applies series of lists, some of them partially: a frontend must admit its
// previous or its wanted clients and no others.
func TestSourceRangesDuringUpdate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := ample
		limits.SourceRanges = rapid.IntRange(4, 20).Draw(t, "max source ranges")
		have := forwarding.NewState()
		p := NewPlanner(have)
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				p = NewPlanner(have)
			}
			m := genRestricted(t)
			want, problems := p.Plan(have, m, limits)
			checkLists(t, want, m, len(problems) > 0)
			have = checkAdmissions(t, have, want, limits)
		}
	})
}

func genRestricted(t *rapid.T) *model.Model {
	var frontends []model.Frontend
	for vip := 1; vip <= 3; vip++ {
		f := frontend(vip, fmt.Sprintf("service%d", vip), vip)
		if rapid.Bool().Draw(t, "restricted") {
			numbers := rapid.SliceOfNDistinct(rapid.IntRange(1, 6), 0, 4, rapid.ID[int]).Draw(t, "prefixes")
			slices.Sort(numbers)
			f = restricted(f, numbers...)
		}
		frontends = append(frontends, f)
	}
	return modelOf(frontends...)
}

func checkLists(t *rapid.T, want *forwarding.State, m *model.Model, full bool) {
	used := map[forwarding.SourceSet]bool{}
	for i := range m.Frontends {
		f := m.Frontends[i]
		planned, found := want.Frontends[f.Key]
		used[planned.Ranges] = true
		shut := full && (!found || planned.Ranges == forwarding.NoSources)
		if got := admitted(want, f.Key); got != asksFor(f) && !shut {
			t.Fatalf("%s admits %s, want %s", f.Key, got, asksFor(f))
		}
	}
	for source := range want.SourceRanges {
		if !used[source.Set] {
			t.Fatalf("set %d is planned, but unused", source.Set)
		}
	}
}

func checkAdmissions(t *rapid.T, have, want *forwarding.State, limits forwarding.Limits) *forwarding.State {
	ops := forwarding.Diff(have, want)
	if rapid.Bool().Draw(t, "interrupted") {
		ops = ops[:rapid.IntRange(0, len(ops)).Draw(t, "done")]
	}
	state := have
	for i, op := range ops {
		state = forwarding.Apply(state, []forwarding.Op{op})
		for key := range state.Frontends {
			now, before, after := admitted(state, key), admitted(have, key), admitted(want, key)
			if now != before && now != after {
				t.Fatalf("after operation %d, %T, %s admits %s, previously %s, finally %s", i, op, key, now, before, after)
			}
		}
		if len(state.SourceRanges) > limits.SourceRanges {
			t.Fatalf("after operation %d, %T: %d source ranges exceed the limit", i, op, len(state.SourceRanges))
		}
	}
	return state
}
