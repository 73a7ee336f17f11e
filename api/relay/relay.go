// SPDX-License-Identifier: Apache-2.0

// Package relay defines the protocol between agents and a relay of EndpointSlices. A relay watches the API
// server once and sends only changed endpoints to thousands of agents. A response is a stream of events like
// a watch of the API server. Its resource versions are those of the API server, so that an agent can continue
// with another relay or with the API server.
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

// Audience is the audience of the tokens that agents send to relays. The API server does not accept it.
const Audience = "millrace-relay"

// format identifies the encoding of events and the fields that Slim keeps; increase it when either changes. A
// relay rejects requests with another format.
const format = "1"

const (
	parameterSince    = "resourceVersion"
	parameterSnapshot = "sendInitialEvents"
	parameterFormat   = "format"
)

// Request selects the events that an agent requests.
type Request struct {
	// Since is the resource version up to which the agent has all changes; 0 if it has none.
	Since uint64
	// Snapshot requests all slices first, at Since or later, followed by changes.
	Snapshot bool
}

// Values encodes the request as URL parameters.
func (r Request) Values() url.Values {
	return url.Values{
		parameterFormat: {format},
		parameterSince:  {strconv.FormatUint(r.Since, 10)}, parameterSnapshot: {strconv.FormatBool(r.Snapshot)},
	}
}

// ParseRequest parses the URL parameters of a request.
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

// ParseVersion parses a resource version, an increasing number (Kubernetes API concepts). An empty version is
// zero.
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
	// Put contains a complete slice, which may replace an existing one.
	Put EventType = 1 + iota
	// Change contains changes of a slice that was sent earlier in the same stream.
	Change
	// Delete removes a slice. The metadata of its Slice contains only the name and the version.
	Delete
	// Bookmark means that all changes up to a version were sent. The first one ends a snapshot.
	Bookmark
)

// Event is an event of a stream.
type Event struct {
	Type EventType
	// Version is the resource version of a Bookmark; zero for other types.
	Version uint64
	// Slice is the slice of the event. For a Change, it contains only the new endpoints.
	Slice *discoveryv1.EndpointSlice
	// Runs compose the endpoints after a Change.
	Runs []Run
}

// Run is a sequence of Count endpoints: the next new endpoints of the Change, or those of the previous slice
// starting at From.
type Run struct {
	New   bool
	From  int
	Count int
}

// BookmarkEvery is the interval of bookmarks. Agents detect a relay that hangs by missing bookmarks.
const BookmarkEvery = 2 * time.Second

// HeaderBookmarkEvery is the response header with the interval of bookmarks in seconds.
const HeaderBookmarkEvery = "Millrace-Bookmark-Seconds"

// EventTimeout returns the time after which an agent stops waiting for an event: three bookmark intervals.
// Relays without the header send a bookmark every ten seconds.
func EventTimeout(header http.Header) time.Duration {
	const bookmarks, before = 3, 10 * time.Second
	seconds, err := strconv.ParseUint(header.Get(HeaderBookmarkEvery), 10, 16)
	if err != nil || seconds == 0 || seconds > uint64(before.Seconds()) {
		return bookmarks * before
	}
	return bookmarks * time.Duration(seconds) * time.Second
}
