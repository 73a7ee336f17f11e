// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func firstInOrder(rules []*resource.Match, request Request) (int, bool) {
	for i, rule := range rules {
		if matches(rule, request) {
			return i, true
		}
	}
	return 0, false
}

func matches(rule *resource.Match, request Request) bool {
	if rule.GetMethod() != "" && rule.GetMethod() != request.Method {
		return false
	}
	if path := rule.GetPath(); path != nil {
		switch path.Kind {
		case resource.PathMatch_EXACT:
			if request.Path != path.Value {
				return false
			}
		case resource.PathMatch_PREFIX:
			prefix := strings.TrimRight(path.Value, "/")
			if prefix != "" && request.Path != prefix && !strings.HasPrefix(request.Path, prefix+"/") {
				return false
			}
		default:
			if !regexp.MustCompile("^(?:" + path.Value + ")$").MatchString(request.Path) {
				return false
			}
		}
	}
	for _, header := range rule.GetHeaders() {
		values := request.Header[header.Name]
		if len(values) == 0 || !valueMatches(header, strings.Join(values, ",")) {
			return false
		}
	}
	query, _ := url.ParseQuery(request.RawQuery)
	for _, parameter := range rule.GetQueryParameters() {
		if !query.Has(parameter.Name) || !valueMatches(parameter, query.Get(parameter.Name)) {
			return false
		}
	}
	return true
}

func valueMatches(match *resource.ValueMatch, have string) bool {
	if match.RegularExpression {
		return regexp.MustCompile("^(?:" + match.Value + ")$").MatchString(have)
	}
	return have == match.Value
}

// A small alphabet produces many collisions.
var (
	paths = rapid.Custom(func(t *rapid.T) string {
		elements := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab", ""}), 0, 5).Draw(t, "elements")
		return "/" + strings.Join(elements, "/")
	})
	methods     = rapid.SampledFrom([]string{"", "", "GET", "POST"})
	values      = rapid.SampledFrom([]string{"", "1", "2", "12"})
	expressions = rapid.SampledFrom([]string{"1|2", ".*", "1", "/a/.*", "/a|/b", "/(a|b)/?", "/a/b/?", "/a/ab.*", "(?i)/A/.*", "/a//b", "a/b/.*", "\\*", "(/a/b/)?.*", "/a/b(/|$).*"})
)

func drawValues(t *rapid.T, names ...string) []*resource.ValueMatch {
	var drawn []*resource.ValueMatch
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 2, rapid.ID).Draw(t, "names") {
		v := &resource.ValueMatch{Name: name, RegularExpression: rapid.Bool().Draw(t, "expression")}
		if v.RegularExpression {
			v.Value = expressions.Draw(t, "value")
		} else {
			v.Value = values.Draw(t, "value")
		}
		drawn = append(drawn, v)
	}
	return drawn
}

func drawRule(t *rapid.T) *resource.Match {
	rule := &resource.Match{Method: methods.Draw(t, "method")}
	if rapid.IntRange(0, 9).Draw(t, "plain") > 4 {
		rule.Headers = drawValues(t, "X-A", "X-B")
		rule.QueryParameters = drawValues(t, "q", "r")
	}
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
	case 1:
		rule.Path = &resource.PathMatch{Kind: resource.PathMatch_REGULAR_EXPRESSION, Value: expressions.Draw(t, "path")}
	case 2:
		rule.Path = &resource.PathMatch{Kind: resource.PathMatch_EXACT, Value: paths.Draw(t, "path")}
	default:
		rule.Path = &resource.PathMatch{Kind: resource.PathMatch_PREFIX, Value: paths.Draw(t, "path")}
	}
	return rule
}

func TestFindIsFirstInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Custom(drawRule)
		if rapid.Bool().Draw(t, "crowded") {
			// Many rules of one path, so that they are indexed.
			one = rapid.Map(one, func(rule *resource.Match) *resource.Match {
				rule.Path = &resource.PathMatch{Kind: resource.PathMatch_PREFIX, Value: "/a"}
				return rule
			})
		}
		rules := rapid.SliceOfN(one, 0, 40).Draw(t, "rules")
		group, err := Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			request := Request{
				Method: rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"),
				Path:   rapid.OneOf(paths, rapid.Just("*")).Draw(t, "path"),
				Header: map[string][]string{},
			}
			for _, name := range []string{"X-A", "X-B"} {
				if got := rapid.SliceOfN(values, 0, 2).Draw(t, name); len(got) > 0 {
					request.Header[name] = got
				}
			}
			var query []string
			for _, name := range []string{"q", "r"} {
				for _, v := range rapid.SliceOfN(values, 0, 2).Draw(t, name) {
					query = append(query, name+"="+v)
				}
			}
			request.RawQuery = strings.Join(query, "&")
			want, wantOK := firstInOrder(rules, request)
			got, ok := group.Find(&request)
			if ok != wantOK || ok && got != want {
				t.Fatalf("rule %d, %v; want %d, %v for %+v", got, ok, want, wantOK, request)
			}
		}
	})
}

func TestCompileRefuses(t *testing.T) {
	for name, rule := range map[string]*resource.Match{
		"path":      {Path: &resource.PathMatch{Kind: resource.PathMatch_REGULAR_EXPRESSION, Value: "a)(b"}},
		"kind":      {Path: &resource.PathMatch{Kind: 9}},
		"header":    {Headers: []*resource.ValueMatch{{Name: "a", Value: "(", RegularExpression: true}}},
		"parameter": {QueryParameters: []*resource.ValueMatch{{Name: "a", Value: "(", RegularExpression: true}}},
	} {
		if _, err := Compile([]*resource.Match{{}, rule}); err == nil || !strings.Contains(err.Error(), "rule 1") {
			t.Errorf("%s: error %v; want one that names rule 1", name, err)
		}
	}
}

func TestFindReadsHostAndHeaderNames(t *testing.T) {
	group, err := Compile([]*resource.Match{
		{Headers: []*resource.ValueMatch{{Name: "host", Value: "a.example.com"}}},
		{Headers: []*resource.ValueMatch{{Name: "x-some-name", Value: "1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := group.Find(&Request{Path: "/", Host: "a.example.com"}); !ok || got != 0 {
		t.Errorf("by host: rule %d, %v; want 0", got, ok)
	}
	if got, ok := group.Find(&Request{Path: "/", Header: map[string][]string{"X-Some-Name": {"1"}}}); !ok || got != 1 {
		t.Errorf("by header: rule %d, %v; want 1", got, ok)
	}
}

type hostEntry struct {
	name     string
	wildcard resource.Hostname_Wildcard
}

func (e hostEntry) matches(host string) bool {
	if e.name == "" {
		return true
	}
	before, ok := strings.CutSuffix(host, "."+e.name)
	switch e.wildcard {
	case resource.Hostname_ONE_LABEL:
		return ok && before != "" && !strings.Contains(before, ".")
	case resource.Hostname_LABELS:
		return ok && before != ""
	default:
		return host == e.name
	}
}

// moreSpecific is the documented order of Hosts.
func moreSpecific(a, b hostEntry) int {
	rank := func(e hostEntry) int {
		switch {
		case e.name == "":
			return 0
		case e.wildcard == resource.Hostname_NONE:
			return 10_000
		case e.wildcard == resource.Hostname_ONE_LABEL:
			// Names that match the same host are suffixes of each other, so their lengths decide.
			return 2*len(e.name) + 1
		default:
			return 2 * len(e.name)
		}
	}
	return rank(b) - rank(a)
}

func TestHosts(t *testing.T) {
	names := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab"}), 0, 4).Draw(t, "labels"), ".")
	})
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) hostEntry {
			e := hostEntry{name: names.Draw(t, "name")}
			if e.name != "" {
				e.wildcard = resource.Hostname_Wildcard(rapid.IntRange(0, 2).Draw(t, "wildcard"))
			}
			return e
		}), 0, 10, rapid.ID).Draw(t, "entries")
		var hosts Hosts[hostEntry]
		for _, e := range entries {
			if err := hosts.Add(&resource.Hostname{Name: e.name, Wildcard: e.wildcard}, e); err != nil {
				t.Fatal(err)
			}
		}
		host := names.Draw(t, "host")
		var want []hostEntry
		for _, e := range entries {
			if e.matches(host) {
				want = append(want, e)
			}
		}
		slices.SortFunc(want, moreSpecific)
		got, ok := hosts.Find(host)
		if ok != (len(want) > 0) || ok && got != want[0] {
			t.Fatalf("%q finds %v, %v; want the first of %v", host, got, ok, want)
		}
	})
}

func TestHostsRefusesTwo(t *testing.T) {
	for _, hostname := range []*resource.Hostname{nil, {Name: "a"}, {Name: "a", Wildcard: 1}, {Name: "a", Wildcard: 2}} {
		var hosts Hosts[int]
		if err := hosts.Add(hostname, 1); err != nil {
			t.Fatal(err)
		}
		if err := hosts.Add(hostname, 2); err == nil {
			t.Errorf("no error for two values of %v", hostname)
		}
	}
	var hosts Hosts[int]
	if err := hosts.Add(&resource.Hostname{Name: "a", Wildcard: 7}, 1); err == nil {
		t.Error("no error for a wildcard of an unknown kind")
	}
}

// BenchmarkFind matches a request among 5,000 routes of 10,000 hosts, including the parsing of Host.
func BenchmarkFind(b *testing.B) {
	const hosts, routes = 10_000, 5_000
	var byHost Hosts[*Group]
	for i := range hosts {
		rules := []*resource.Match{
			{Path: &resource.PathMatch{Kind: resource.PathMatch_EXACT, Value: "/healthz"}},
			{Path: &resource.PathMatch{Value: fmt.Sprintf("/api/v1/route%d", i%routes)}},
			{Path: &resource.PathMatch{Value: "/api"}, Headers: []*resource.ValueMatch{{Name: "x-canary", Value: "1"}}},
			{Path: &resource.PathMatch{Value: "/"}},
		}
		group, err := Compile(rules)
		if err != nil {
			b.Fatal(err)
		}
		hostname := &resource.Hostname{Name: fmt.Sprintf("host%d.example.com", i)}
		if i%10 == 0 {
			hostname.Wildcard = resource.Hostname_LABELS
		}
		if err := byHost.Add(hostname, group); err != nil {
			b.Fatal(err)
		}
	}
	// All routes at one host.
	all := make([]*resource.Match, routes)
	for i := range all {
		all[i] = &resource.Match{Path: &resource.PathMatch{Value: fmt.Sprintf("/team%d/service%d", i%50, i)}}
	}
	group, err := Compile(all)
	if err != nil {
		b.Fatal(err)
	}
	if err := byHost.Add(&resource.Hostname{Name: "all.example.com"}, group); err != nil {
		b.Fatal(err)
	}
	// Prefixes of up to eight elements, and one of 400, the longest permitted.
	deep := []*resource.Match{{Path: &resource.PathMatch{Value: strings.Repeat("/a", 400)}}}
	for depth := range 8 {
		for i := range routes / 8 {
			path := strings.Repeat("/a", 7-depth) + fmt.Sprintf("/service%d", i)
			deep = append(deep, &resource.Match{Path: &resource.PathMatch{Value: path}})
		}
	}
	deep = append(deep, &resource.Match{Path: &resource.PathMatch{Value: "/"}})
	if group, err = Compile(deep); err != nil {
		b.Fatal(err)
	}
	if err := byHost.Add(&resource.Hostname{Name: "deep.example.com"}, group); err != nil {
		b.Fatal(err)
	}
	// One path with a header rule per tenant, and as many regular expressions.
	var crowded []*resource.Match
	for i := range routes {
		crowded = append(crowded,
			&resource.Match{Path: &resource.PathMatch{Value: "/"}, Headers: []*resource.ValueMatch{
				{Name: "x-region", Value: "eu"}, {Name: "x-tenant", Value: fmt.Sprint("tenant-", i)}}},
			&resource.Match{Path: &resource.PathMatch{
				Kind: resource.PathMatch_REGULAR_EXPRESSION, Value: fmt.Sprintf("/service%d/v[0-9]+/.*", i)}})
	}
	if group, err = Compile(crowded); err != nil {
		b.Fatal(err)
	}
	if err := byHost.Add(&resource.Hostname{Name: "crowded.example.com"}, group); err != nil {
		b.Fatal(err)
	}
	header := map[string][]string{
		"Accept": {"*/*"}, "User-Agent": {"bench"}, "X-Region": {"eu"}, "X-Tenant": {"tenant-4998"},
	}
	for name, want := range map[string]struct {
		host, path string
		rule       int
	}{
		"exact":    {"host4321.example.com", "/healthz", 0},
		"prefix":   {"host4321.example.com:8443", "/api/v1/route4321/some/thing/below", 1},
		"wildcard": {"A.B.host9990.example.com", "/api/v1/other", 3},
		"deep":     {"deep.example.com", strings.Repeat("/a", 7) + "/none/of/them/at/all/but/a/path/of/many/elements", len(deep) - 1},
		"crowded":  {"crowded.example.com", "/", 2 * 4998},
		"regex":    {"crowded.example.com", "/service4990/v12/x", 2*4990 + 1},
		"large":    {"all.example.com", "/team49/service4999/x", 4999},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			defer func() {
				// CPU time excludes other processes.
				b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			}()
			for b.Loop() {
				host, ok := Host(want.host)
				if !ok {
					b.Fatal("the host was rejected")
				}
				group, ok := byHost.Find(host)
				if !ok {
					b.Fatal("no group found")
				}
				request := Request{Method: "GET", Host: host, Path: Path(want.path), Header: header}
				if rule, ok := group.Find(&request); !ok || rule != want.rule {
					b.Fatalf("rule %d, %v; want %d", rule, ok, want.rule)
				}
			}
		})
	}
}

func processorTime(tb testing.TB) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestExhausted checks that exceeding the work limit finds no rule instead of a less specific one.
func TestExhausted(t *testing.T) {
	slow := &resource.Match{Path: &resource.PathMatch{Value: "/"}, Headers: []*resource.ValueMatch{
		{Name: "x-a", Value: "(x+x+){1,500}y", RegularExpression: true},
	}}
	plain := &resource.Match{Path: &resource.PathMatch{Value: "/"}}
	for name, tc := range map[string]struct {
		rules  []*resource.Match
		values []string
		want   bool
	}{
		"short":                     {[]*resource.Match{slow, plain}, []string{"xxx"}, false},
		"long":                      {[]*resource.Match{slow, plain}, []string{strings.Repeat("x", 60_000)}, true},
		"many rules":                {append(slices.Repeat([]*resource.Match{slow}, 50), plain), []string{strings.Repeat("x", 1000)}, true},
		"match before the limit":    {[]*resource.Match{plain, slow}, []string{strings.Repeat("x", 60_000)}, false},
		"5,000 rules without":       {slices.Repeat([]*resource.Match{plain}, 5000), []string{strings.Repeat("x", 60_000)}, false},
		"list assembled repeatedly": {append(slices.Repeat([]*resource.Match{joined}, 50_000), plain), []string{strings.Repeat("x", 30_000), strings.Repeat("y", 30_000)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			group, err := Compile(tc.rules)
			if err != nil {
				t.Fatal(err)
			}
			request := Request{Path: "/", Header: map[string][]string{"X-A": tc.values}}
			rule, ok := group.Find(&request)
			if request.Exhausted() != tc.want || ok == tc.want {
				t.Errorf("exhausted: %v, rule %d, %v; want exhausted: %v, and a rule unless exhausted",
					request.Exhausted(), rule, ok, tc.want)
			}
		})
	}
}

// joined requires a header with several values, and another that is absent.
var joined = &resource.Match{
	Path: &resource.PathMatch{Value: "/"},
	Headers: []*resource.ValueMatch{
		{Name: "x-a", Value: "[z]", RegularExpression: true},
		{Name: "x-b", Value: "z", RegularExpression: true},
	},
}
