// SPDX-License-Identifier: Apache-2.0

// Package relay defines the protocol between agents and a relay of EndpointSlices, which watches the API
// server once, and sends thousands of agents only the changes of a slice. An answer is a stream of events
// like a watch of the API server, with the same resource versions, so that an agent can continue with
// another relay or with the API server.
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

// PathEndpointSlices is the path of agents' requests, with the parameters of a Request.
const PathEndpointSlices = "/relay/v1alpha1/endpointslices"

// Audience is that of agents' tokens for relays, which the API server does not accept.
const Audience = "millrace-relay"

// format identifies the fields that Slim keeps and the encoding of events; increase it with the fields. A
// relay with another format rejects the request.
const format = "1"

const (
	parameterSince    = "resourceVersion"
	parameterSnapshot = "sendInitialEvents"
	parameterFormat   = "format"
)

// Request is a request of an agent.
type Request struct {
	// Since is the resource version up to which the agent has all changes. Zero: it has no state.
	Since uint64
	// Snapshot requests all slices first, at Since or later, followed by changes.
	Snapshot bool
}

// Values returns the parameters of a URL.
func (r Request) Values() url.Values {
	return url.Values{
		parameterFormat: {format},
		parameterSince:  {strconv.FormatUint(r.Since, 10)}, parameterSnapshot: {strconv.FormatBool(r.Snapshot)},
	}
}

// ParseRequest parses the parameters of a URL.
func ParseRequest(values url.Values) (r Request, err error) {
	if requested := values.Get(parameterFormat); requested != format {
		return Request{}, fmt.Errorf("the agent requests format %q, but the relay serves %q: upgrade the older one", requested, format)
	}
	if r.Since, err = ParseVersion(values.Get(parameterSince)); err != nil {
		return Request{}, err
	}
	if r.Snapshot, err = strconv.ParseBool(values.Get(parameterSnapshot)); err != nil {
		return Request{}, fmt.Errorf("%s: %w", parameterSnapshot, err)
	}
	if r.Since == 0 && !r.Snapshot {
		return Request{}, errors.New("a request without a resource version must request a snapshot")
	}
	return r, nil
}

// ParseVersion parses a resource version, an increasing number (Kubernetes API concepts), or zero.
func ParseVersion(version string) (uint64, error) {
	if version == "" {
		return 0, nil
	}
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version %q is not a number", version)
	}
	return number, nil
}

// EventType is the type of an Event.
type EventType uint8

const (
	// Put is a complete slice, which may replace an existing one.
	Put EventType = 1 + iota
	// Change is a change of a slice that was sent earlier in the same answer.
	Change
	// Delete is the deletion of a slice; its metadata has only the name and the version.
	Delete
	// Bookmark states that all changes up to a version were sent. The first one ends a snapshot.
	Bookmark
)

// Event is an event of a stream.
type Event struct {
	Type EventType
	// Version is the version of a Bookmark, and zero for other types.
	Version uint64
	// Slice is the slice. For a Change it has only the new endpoints.
	Slice *discoveryv1.EndpointSlice
	// Runs specify how the endpoints of a Change are composed.
	Runs []Run
}

// Run is a sequence of endpoints: the next new ones of the Change, or some of the previous slice.
type Run struct {
	New   bool
	From  int
	Count int
}

// BookmarkEvery is the interval of bookmarks by which agents detect a relay that hangs.
const BookmarkEvery = 2 * time.Second

// HeaderBookmarkEvery of an answer is the interval of bookmarks in seconds.
const HeaderBookmarkEvery = "Millrace-Bookmark-Seconds"

// EventTimeout returns how long an agent waits for an event: three bookmarks. Relays without the header
// send a bookmark every ten seconds.
func EventTimeout(header http.Header) time.Duration {
	const bookmarks, before = 3, 10 * time.Second
	seconds, err := strconv.ParseUint(header.Get(HeaderBookmarkEvery), 10, 16)
	if err != nil || seconds == 0 || seconds > uint64(before.Seconds()) {
		return bookmarks * before
	}
	return bookmarks * time.Duration(seconds) * time.Second
}
