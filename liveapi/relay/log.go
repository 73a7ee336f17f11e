// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/relay"
)

// maxLog limits the size of the changes that are retained for agents that reconnect, in bytes.
const maxLog = 32 << 20

var (
	errNotReady = errors.New("the relay has not listed the EndpointSlices yet")
	errCut      = errors.New("the relay has no connection with the API server")
	errAhead    = errors.New("the relay does not have this resource version yet")
	errExpired  = errors.New("the relay no longer has the changes after this resource version")
)

// Log contains all EndpointSlices and their latest changes, encoded for sending. It is safe for concurrent
// use.
type Log struct {
	mu     sync.Mutex
	slices map[types.NamespacedName]*state
	// entries are the latest changes. first is the index of entries[0] among all changes.
	entries []entry
	first   int64
	size    int
	// version is the resource version up to which the log is complete; zero before the first list. entries
	// contains all changes after floor.
	version, floor uint64
	// changed is closed at the next change; nil if no reader waits.
	changed chan struct{}
	// unreachableSince is the time since which the API server is unreachable; zero while it is reachable.
	unreachableSince time.Time
}

type state struct {
	// put is the encoded Put event of the slice.
	put []byte
	// place is the index of the latest entry about the slice.
	place int64
}

type entry struct {
	// version is the resource version up to which the log is complete with this entry.
	version uint64
	// whole is the encoded event for readers that do not have the previous slice. change is that for readers
	// that have it; nil if there is none.
	whole, change []byte
	// before is the index of the previous entry about the slice.
	before int64
}

func (l *Log) place() int64 { return l.first + int64(len(l.entries)) }

// Put adds or replaces a slice. It does not retain the argument.
func (l *Log) Put(slice *discoveryv1.EndpointSlice) error {
	version, err := relay.ParseVersion(slice.ResourceVersion)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.put(slice, version); err != nil {
		return err
	}
	l.advance(version)
	return nil
}

func (l *Log) put(slice *discoveryv1.EndpointSlice, version uint64) error {
	slimmed := relay.Slim(slice)
	whole, err := relay.Encode(nil, &relay.Event{Type: relay.Put, Slice: slimmed})
	if err != nil {
		return err
	}
	name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
	added := entry{version: version, whole: whole, before: -1}
	if known := l.slices[name]; known != nil {
		added.before = known.place
		if added.change, err = change(known.put, slimmed); err != nil {
			return err
		}
		if len(added.change) >= len(whole) {
			added.change = nil
		}
	}
	l.keep(name, &state{put: whole, place: l.place()})
	l.append(added)
	return nil
}

func (l *Log) keep(name types.NamespacedName, s *state) {
	if l.slices == nil {
		l.slices = map[types.NamespacedName]*state{}
	}
	l.slices[name] = s
}

// change encodes a Change event from the slice in a Put event to another version of it.
func change(put []byte, slice *discoveryv1.EndpointSlice) ([]byte, error) {
	before, err := relay.DecodeOne(put)
	if err != nil {
		return nil, err
	}
	texts, err := written(before.Slice.Endpoints)
	if err != nil {
		return nil, err
	}
	next, err := written(slice.Endpoints)
	if err != nil {
		return nil, err
	}
	runs, added := relay.Diff(texts, next)
	changed := *slice
	changed.Endpoints = make([]discoveryv1.Endpoint, 0, len(added))
	for _, i := range added {
		changed.Endpoints = append(changed.Endpoints, slice.Endpoints[i])
	}
	return relay.Encode(nil, &relay.Event{Type: relay.Change, Slice: &changed, Runs: runs})
}

func written(endpoints []discoveryv1.Endpoint) ([]string, error) {
	texts := make([]string, len(endpoints))
	for i := range endpoints {
		text, err := endpoints[i].Marshal()
		if err != nil {
			return nil, fmt.Errorf("write an endpoint: %w", err)
		}
		texts[i] = string(text)
	}
	return texts, nil
}

// Delete removes a slice.
func (l *Log) Delete(slice *discoveryv1.EndpointSlice) error {
	version, err := relay.ParseVersion(slice.ResourceVersion)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.delete(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}, slice.ResourceVersion, version); err != nil {
		return err
	}
	l.advance(version)
	return nil
}

func (l *Log) delete(name types.NamespacedName, resourceVersion string, version uint64) error {
	if l.slices[name] == nil {
		return nil
	}
	gone := &discoveryv1.EndpointSlice{}
	gone.Namespace, gone.Name, gone.ResourceVersion = name.Namespace, name.Name, resourceVersion
	whole, err := relay.Encode(nil, &relay.Event{Type: relay.Delete, Slice: gone})
	if err != nil {
		return err
	}
	delete(l.slices, name)
	l.append(entry{version: version, whole: whole, before: -1})
	return nil
}

// Replace replaces all slices with those of a list. Readers cannot continue from earlier versions, because
// changes between the last event and the list may be missing.
func (l *Log) Replace(list []*discoveryv1.EndpointSlice, resourceVersion string) error {
	version, err := relay.ParseVersion(resourceVersion)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if version < l.version {
		l.restart()
	}
	listed := make(map[types.NamespacedName]bool, len(list))
	for _, slice := range list {
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
		listed[name] = true
		if known := l.slices[name]; known != nil {
			same, err := isEqual(known.put, slice)
			if err != nil {
				return err
			}
			if same {
				continue
			}
		}
		if err := l.put(slice, version); err != nil {
			return err
		}
	}
	for name := range l.slices {
		if !listed[name] {
			if err := l.delete(name, resourceVersion, version); err != nil {
				return err
			}
		}
	}
	l.floor = version + 1
	l.advance(version)
	return nil
}

// restart ends all streams when resource versions decrease, for example because etcd was restored. Agents
// with later versions continue with the API server, which rejects these versions.
func (l *Log) restart() {
	l.first, l.entries, l.size = l.place()+1, nil, 0
	l.version = 0
}

func isEqual(put []byte, slice *discoveryv1.EndpointSlice) (bool, error) {
	known, err := relay.DecodeOne(put)
	if err != nil {
		return false, err
	}
	return known.Slice.UID == slice.UID && known.Slice.ResourceVersion == slice.ResourceVersion, nil
}

// Bookmark records that the log is complete up to a resource version.
func (l *Log) Bookmark(resourceVersion string) error {
	version, err := relay.ParseVersion(resourceVersion)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(version)
	return nil
}

func (l *Log) advance(version uint64) {
	l.version = max(l.version, version)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

func (l *Log) append(e entry) {
	l.entries = append(l.entries, e)
	l.size += e.bytes()
	for len(l.entries) > 1 && l.size > maxLog {
		forgotten := l.entries[0]
		l.entries[0] = entry{}
		l.entries = l.entries[1:]
		l.first++
		l.size -= forgotten.bytes()
		l.floor = max(l.floor, forgotten.version)
	}
}

func (e entry) bytes() int { return len(e.whole) + len(e.change) }

// Connected records whether the API server is reachable.
func (l *Log) Connected(is bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case is:
		l.unreachableSince = time.Time{}
	case l.unreachableSince.IsZero():
		l.unreachableSince = now
	}
}

// Ready returns an error before the first list, and if the API server has been unreachable since before
// notBefore.
func (l *Log) Ready(notBefore time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready(notBefore)
}

func (l *Log) ready(notBefore time.Time) error {
	switch {
	case l.version == 0:
		return errNotReady
	case !l.unreachableSince.IsZero() && l.unreachableSince.Before(notBefore):
		return errCut
	}
	return nil
}

// Known returns nil if the log is complete up to a version. Otherwise it returns a channel that is closed at
// the next change.
func (l *Log) Known(version uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version != 0 && l.version >= version {
		return nil
	}
	return l.next()
}

func (l *Log) next() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Reader reads the entries of a log in order.
type Reader struct {
	log *Log
	// place is the index of the next entry to read. streamStart is the first index of the stream: the reader
	// has the slices of entries from it on. It is zero after a snapshot.
	place, streamStart int64
}

// Open returns a reader for a request, and the events to send first.
func (l *Log) Open(request relay.Request) (*Reader, [][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.version == 0:
		return nil, nil, errNotReady
	case l.version < request.Since:
		return nil, nil, errAhead
	case request.Snapshot:
		return l.snapshot()
	case request.Since < l.floor:
		return nil, nil, errExpired
	}
	place := l.first + int64(sort.Search(len(l.entries), func(i int) bool { return l.entries[i].version > request.Since }))
	return &Reader{log: l, place: place, streamStart: place}, nil, nil
}

func (l *Log) snapshot() (*Reader, [][]byte, error) {
	all := make([][]byte, 0, len(l.slices)+1)
	for _, s := range l.slices {
		all = append(all, s.put)
	}
	end, err := relay.Encode(nil, &relay.Event{Type: relay.Bookmark, Version: l.version})
	if err != nil {
		return nil, nil, err
	}
	return &Reader{log: l, place: l.place()}, append(all, end), nil
}

// Next returns new events. If there are none, it returns a channel that is closed at the next change.
func (r *Reader) Next() (events [][]byte, changed <-chan struct{}, err error) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.place < l.first {
		return nil, nil, errExpired
	}
	for ; r.place < l.place(); r.place++ {
		e := &l.entries[r.place-l.first]
		if e.change != nil && e.before >= r.streamStart {
			events = append(events, e.change)
		} else {
			events = append(events, e.whole)
		}
	}
	if len(events) > 0 {
		return events, nil, nil
	}
	return nil, l.next(), nil
}

// Bookmark returns a Bookmark event with the current version, or nil if there are unread entries.
func (r *Reader) Bookmark() ([]byte, error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.place != r.log.place() {
		return nil, nil
	}
	return relay.Encode(nil, &relay.Event{Type: relay.Bookmark, Version: r.log.version})
}
