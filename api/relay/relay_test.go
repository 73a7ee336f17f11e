// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func endpoints(addresses ...string) []discoveryv1.Endpoint {
	var all []discoveryv1.Endpoint
	for _, address := range addresses {
		all = append(all, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return all
}

// TestApplyReversesDiff checks that Apply restores the endpoints that were passed to Diff in their order,
// even with duplicates.
func TestApplyReversesDiff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.StringMatching("[a-h]"), 0, 12)
		before, after := list.Draw(t, "before"), list.Draw(t, "after")
		runs, added := Diff(before, after)
		var fresh []string
		for _, i := range added {
			fresh = append(fresh, after[i])
		}
		got, err := Apply(endpoints(before...), endpoints(fresh...), runs)
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(got, endpoints(after...)) && len(after)+len(got) > 0 {
			t.Fatalf("%v and %v make %v, want %v", before, runs, got, after)
		}
	})
}

func TestDiffIsShort(t *testing.T) {
	var before []string
	for i := range 100 {
		before = append(before, strconv.Itoa(i))
	}
	after := slices.Clone(before)
	after[40] = "new"
	runs, added := Diff(before, after)
	want := []Run{{Count: 40}, {New: true, Count: 1}, {From: 41, Count: 59}}
	if !slices.Equal(runs, want) || !slices.Equal(added, []int{40}) {
		t.Errorf("the difference is %v with %v, want %v with [40]", runs, added, want)
	}
}

func TestApplyRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		added int
		runs  []Run
	}{
		"beyond those before":    {runs: []Run{{From: 2, Count: 2}}},
		"before the first":       {runs: []Run{{From: -1, Count: 2}}},
		"beyond the new ones":    {added: 1, runs: []Run{{New: true, Count: 2}}},
		"a new one is left":      {added: 1, runs: []Run{{Count: 3}}},
		"none":                   {runs: []Run{{Count: 0}}},
		"more than an int has":   {runs: []Run{{From: 1, Count: int(^uint(0) >> 1)}}},
		"the same, many times":   {runs: slices.Repeat([]Run{{Count: 3}}, 1<<16)},
		"a place that overflows": {runs: []Run{{From: int(^uint(0) >> 1), Count: 1}}},
	} {
		if _, err := Apply(endpoints("a", "b", "c"), endpoints(slices.Repeat([]string{"new"}, test.added)...), test.runs); !errors.Is(err, errRuns) {
			t.Errorf("%s: the error is %v, want %v", name, err, errRuns)
		}
	}
}

func TestEventsAreRead(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", ResourceVersion: "7"},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints("198.18.0.1"),
	}
	gone := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", ResourceVersion: "9"}}
	events := []Event{
		{Type: Put, Slice: slice},
		{Type: Change, Slice: slice, Runs: []Run{{From: 3, Count: 2}, {New: true, Count: 1}}},
		{Type: Delete, Slice: gone},
		{Type: Bookmark, Version: 1 << 40},
	}
	var stream []byte
	for i := range events {
		var err error
		if stream, err = Encode(stream, &events[i]); err != nil {
			t.Fatal(err)
		}
	}
	decoder := NewDecoder(bytes.NewReader(stream))
	for i := range events {
		read, err := decoder.Decode()
		if err != nil || !equality.Semantic.DeepEqual(*read, events[i]) {
			t.Errorf("event %d parses as %v, %v; want %v", i, read, err, events[i])
		}
	}
	if _, err := decoder.Decode(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last one the error is %v, want %v", err, io.EOF)
	}
	if _, err := NewDecoder(bytes.NewReader(stream[:len(stream)-1])).Decode(); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeOne(stream[:3]); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an event: the error is %v", err)
	}
}

// FuzzDecode checks that no stream makes an agent panic, or allocate more memory than the size of the stream.
func FuzzDecode(f *testing.F) {
	stream, err := Encode(nil, &Event{Type: Change, Slice: &discoveryv1.EndpointSlice{Endpoints: endpoints("a", "b")}, Runs: []Run{{New: true, Count: 2}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stream)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, stream []byte) {
		decoder := NewDecoder(bytes.NewReader(stream))
		for {
			event, err := decoder.Decode()
			if err != nil {
				return
			}
			if event.Type != Bookmark {
				_, _ = Apply(endpoints("x", "y"), event.Slice.Endpoints, event.Runs)
			}
		}
	})
}

func TestRequest(t *testing.T) {
	for _, request := range []Request{{Since: 12}, {Snapshot: true}, {Since: 12, Snapshot: true}} {
		got, err := ParseRequest(request.Values())
		if err != nil || got != request {
			t.Errorf("%v parses as %v, %v", request, got, err)
		}
	}
	with := func(name, value string) url.Values {
		values := Request{Since: 12}.Values()
		values.Set(name, value)
		return values
	}
	for name, values := range map[string]url.Values{
		"an older agent": with(parameterFormat, "0"),
		"no version":     with(parameterSince, "0"),
		"no number":      with(parameterSince, "a"),
		"neither":        with(parameterSnapshot, "perhaps"),
		"nothing":        {},
	} {
		if request, err := ParseRequest(values); err == nil {
			t.Errorf("%s: parsed as %v", name, request)
		}
	}
}

func TestSilence(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 30 * time.Second, "2": 6 * time.Second, "10": 30 * time.Second,
		"0": 30 * time.Second, "-1": 30 * time.Second, "600": 30 * time.Second, "soon": 30 * time.Second,
	} {
		header := http.Header{}
		header.Set(HeaderBookmarkEvery, text)
		if got := EventTimeout(header); got != want {
			t.Errorf("with bookmarks every %q s it waits for %s, want %s", text, got, want)
		}
	}
}
