// SPDX-License-Identifier: Apache-2.0

// Package relay is what agents and a relay of EndpointSlices say to each other. A relay watches the
// API server once, and tells thousands of agents what changed of a slice, not the whole slice.
//
// An answer is a stream of events, as of a watch of the API server (Kubernetes API concepts,
// "Efficient detection of changes"), with the same resource versions: so an agent can go on at
// another relay, or at the API server.
package relay

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// PathEndpointSlices is where agents ask, with the parameters of a Request.
const PathEndpointSlices = "/relay/v1alpha1/endpointslices"

// Audience is the audience of the tokens that agents present to relays. The API server accepts no such token.
const Audience = "millrace-relay"

// format is what agents of this version read of slices, and how events are written. A relay of another
// one has nothing for them. It grows with each field that Slim leaves and did not leave before.
const format = "1"

// Parameters of a Request.
const (
	parameterSince    = "resourceVersion"
	parameterSnapshot = "sendInitialEvents"
	parameterFormat   = "format"
)

// Request is what an agent asks for.
type Request struct {
	// Since is the resource version up to which the agent knows all. Zero: it knows nothing.
	Since uint64
	// Snapshot asks for all slices first, at Since or later, and then for what changes.
	Snapshot bool
}

// Values are the parameters of a URL.
func (r Request) Values() url.Values {
	return url.Values{
		parameterFormat: {format},
		parameterSince:  {strconv.FormatUint(r.Since, 10)}, parameterSnapshot: {strconv.FormatBool(r.Snapshot)},
	}
}

// ParseRequest reads the parameters of a URL.
func ParseRequest(values url.Values) (r Request, err error) {
	if asked := values.Get(parameterFormat); asked != format {
		return Request{}, fmt.Errorf("the agent reads format %q, the relay writes %q: one of them is older", asked, format)
	}
	if r.Since, err = ParseVersion(values.Get(parameterSince)); err != nil {
		return Request{}, err
	}
	if r.Snapshot, err = strconv.ParseBool(values.Get(parameterSnapshot)); err != nil {
		return Request{}, fmt.Errorf("%s: %w", parameterSnapshot, err)
	}
	if r.Since == 0 && !r.Snapshot {
		return Request{}, errors.New("who knows nothing has to ask for all")
	}
	return r, nil
}

// ParseVersion reads a resource version. They are numbers that grow (Kubernetes API concepts,
// "Resource versions"); empty is zero.
func ParseVersion(version string) (uint64, error) {
	if version == "" {
		return 0, nil
	}
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version %q is no number", version)
	}
	return number, nil
}

// EventType says what an Event tells.
type EventType uint8

const (
	// Put is a slice, whole, which may be there already.
	Put EventType = 1 + iota
	// Change is what changed of a slice that was told before in the same answer.
	Change
	// Delete is the slice that is gone: of its metadata, the name and the version.
	Delete
	// Bookmark says that all was told up to a version. The first one ends a snapshot.
	Bookmark
)

// Event is one of a stream.
type Event struct {
	Type EventType
	// Version is that of the Bookmark, and of nothing else.
	Version uint64
	// Slice is the slice. Of a Change it has, of the endpoints, those alone that are new.
	Slice *discoveryv1.EndpointSlice
	// Runs are how the endpoints of a Change are put together.
	Runs []Run
}

// Run is a number of endpoints in a row: the next ones of the Change, or some of those before it.
type Run struct {
	// New is whether they are the next ones of the Change.
	New bool
	// From is the place of the first, among the endpoints before, if they are not new.
	From int
	// Count is how many, at least one.
	Count int
}

// BookmarkEvery is how often a relay tells how far it is, where nothing else is to be told: so agents
// notice a relay that hangs, or whose node has lost power.
const BookmarkEvery = 2 * time.Second

// HeaderBookmarkEvery of an answer is how often bookmarks come, in seconds.
const HeaderBookmarkEvery = "Millrace-Bookmark-Seconds"

// Silence is how long an agent waits for a word of a relay whose answer has this header: three
// bookmarks. Without one the relay is of a version that sent them every ten seconds.
func Silence(header http.Header) time.Duration {
	const bookmarks, before = 3, 10 * time.Second
	seconds, err := strconv.ParseUint(header.Get(HeaderBookmarkEvery), 10, 16)
	if err != nil || seconds == 0 || seconds > uint64(before.Seconds()) {
		return bookmarks * before
	}
	return bookmarks * time.Duration(seconds) * time.Second
}
