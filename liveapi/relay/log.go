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

// maxLog bounds the changes that are kept for those who were away for a moment, in bytes.
const maxLog = 32 << 20

// Errors of Open and Next.
var (
	errNotReady = errors.New("the relay has not read all EndpointSlices yet")
	errCut      = errors.New("the relay has no connection with the API server")
	errAhead    = errors.New("the relay does not know that resource version yet")
	errExpired  = errors.New("the relay has forgotten what came after that resource version")
)

// Log is all slices, and what changed of them lately, as it is sent. Its zero value has read nothing.
type Log struct {
	mu     sync.Mutex
	slices map[types.NamespacedName]*state
	// entries are the latest changes. The place of the first among all that ever were is first.
	entries []entry
	first   int64
	size    int
	// version is up to which all is known; zero before all was read once. Changes after floor are
	// among the entries.
	version, floor uint64
	// changed is closed after the next change; nil while nobody waits.
	changed chan struct{}
	// cut is since when the API server was not reached; zero while it is.
	cut time.Time
}

// state is a slice as it is now.
type state struct {
	// put is the event that tells it, written.
	put []byte
	// place is that of its latest entry.
	place int64
}

// entry is a change.
type entry struct {
	// version is that up to which all is known with it.
	version uint64
	// whole is the event, written, for somebody who does not know the slice as it was before, change
	// for one who does; nil: there is none.
	whole, change []byte
	// before is the place of the entry that told the slice as it was before.
	before int64
}

// place is that of the next entry.
func (l *Log) place() int64 { return l.first + int64(len(l.entries)) }

// Put adds a slice, or changes it. The slice is not kept.
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

// change returns the event that makes the slice of a Put another one, written.
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

// Delete takes a slice out.
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

// Replace has the slices be those of a list at a version. Who was told a part of what that changes
// could not say which, so nobody goes on from a version before.
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
			same, err := tells(known.put, slice)
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

// restart ends all streams: versions begin anew, as where etcd was restored from a backup. Agents that
// know later ones are sent to the API server, which tells them so.
func (l *Log) restart() {
	l.first, l.entries, l.size = l.place()+1, nil, 0
	l.version = 0
}

// tells reports whether a Put tells this version of a slice.
func tells(put []byte, slice *discoveryv1.EndpointSlice) (bool, error) {
	known, err := relay.DecodeOne(put)
	if err != nil {
		return false, err
	}
	return known.Slice.UID == slice.UID && known.Slice.ResourceVersion == slice.ResourceVersion, nil
}

// Bookmark says that nothing else changed up to a version.
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

// Connected tells whether the API server is reached, at a time.
func (l *Log) Connected(is bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case is:
		l.cut = time.Time{}
	case l.cut.IsZero():
		l.cut = now
	}
}

// Ready returns an error where the slices are not all read, or are older than a time.
func (l *Log) Ready(notBefore time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready(notBefore)
}

func (l *Log) ready(notBefore time.Time) error {
	switch {
	case l.version == 0:
		return errNotReady
	case !l.cut.IsZero() && l.cut.Before(notBefore):
		return errCut
	}
	return nil
}

// Known returns a channel that is closed after the next change, or nil where the version is known.
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

// Reader reads on from a place.
type Reader struct {
	log *Log
	// place is that of the entry to read next, told that of the first one of the stream: slices with an
	// entry since are known to who reads. It is zero after a snapshot, which tells all.
	place, told int64
}

// Open returns a reader for what was asked for, and what it has to tell first.
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
	return &Reader{log: l, place: place, told: place}, nil, nil
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

// Next returns the events that came since the last call. Where there are none, the channel is closed
// after the next change.
func (r *Reader) Next() (events [][]byte, changed <-chan struct{}, err error) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.place < l.first {
		return nil, nil, errExpired
	}
	for ; r.place < l.place(); r.place++ {
		e := &l.entries[r.place-l.first]
		if e.change != nil && e.before >= r.told {
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

// Bookmark returns the event that tells up to where all was told, if all was.
func (r *Reader) Bookmark() ([]byte, error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.place != r.log.place() {
		return nil, nil
	}
	return relay.Encode(nil, &relay.Event{Type: relay.Bookmark, Version: r.log.version})
}
