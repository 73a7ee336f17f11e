// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/fxamacker/cbor/v2"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// maxEvent limits the size of an event in bytes. The largest slices have 1,000 endpoints and 100 KiB.
	maxEvent     = 4 << 20
	maxEndpoints = 1 << 16
)

// event is the CBOR encoding (RFC 8949) of an Event. In a stream, its length precedes it.
type event struct {
	_       struct{} `cbor:",toarray"`
	Type    EventType
	Version uint64
	// Slice is encoded as protobuf, like responses of the API server.
	Slice []byte
	Runs  []run
}

type run struct {
	_     struct{} `cbor:",toarray"`
	New   bool
	From  int
	Count int
}

// Encode appends an event to a stream.
func Encode(stream []byte, e *Event) ([]byte, error) {
	written := event{Type: e.Type, Version: e.Version, Runs: make([]run, len(e.Runs))}
	var err error
	if e.Slice != nil {
		if written.Slice, err = e.Slice.Marshal(); err != nil {
			return stream, fmt.Errorf("write EndpointSlice %s/%s: %w", e.Slice.Namespace, e.Slice.Name, err)
		}
	}
	for i, r := range e.Runs {
		written.Runs[i] = run{New: r.New, From: r.From, Count: r.Count}
	}
	body, err := cbor.Marshal(&written)
	if err != nil {
		return stream, fmt.Errorf("write an event: %w", err)
	}
	if len(body) > maxEvent {
		return stream, fmt.Errorf("write EndpointSlice %s/%s: %d bytes are more than %d", e.Slice.Namespace, e.Slice.Name, len(body), maxEvent)
	}
	return append(binary.AppendUvarint(stream, uint64(len(body))), body...), nil
}

// Decoder decodes the events of a stream.
type Decoder struct {
	stream *bufio.Reader
	body   []byte
}

// NewDecoder returns a decoder for a stream.
func NewDecoder(stream io.Reader) *Decoder { return &Decoder{stream: bufio.NewReader(stream)} }

// Decode returns the next event. The error is io.EOF if the stream ends between two events.
func (d *Decoder) Decode() (*Event, error) {
	length, err := binary.ReadUvarint(d.stream)
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("read the length of an event: %w", err)
	}
	if length > maxEvent {
		return nil, fmt.Errorf("read an event: %d bytes are more than %d", length, maxEvent)
	}
	if uint64(cap(d.body)) < length {
		d.body = make([]byte, length)
	}
	d.body = d.body[:length]
	if _, err := io.ReadFull(d.stream, d.body); err != nil {
		return nil, fmt.Errorf("read an event: %w", err)
	}
	var written event
	if err := cbor.Unmarshal(d.body, &written); err != nil {
		return nil, fmt.Errorf("read an event: %w", err)
	}
	return written.read()
}

func (e *event) read() (*Event, error) {
	read := &Event{Type: e.Type, Version: e.Version}
	for _, r := range e.Runs {
		read.Runs = append(read.Runs, Run{New: r.New, From: r.From, Count: r.Count})
	}
	switch e.Type {
	case Bookmark:
		return read, nil
	case Put, Change, Delete:
	default:
		return nil, fmt.Errorf("read an event: type %d is unknown", e.Type)
	}
	read.Slice = &discoveryv1.EndpointSlice{}
	if err := read.Slice.Unmarshal(e.Slice); err != nil {
		return nil, fmt.Errorf("read an EndpointSlice: %w", err)
	}
	return read, nil
}

// DecodeOne decodes a stream of one event.
func DecodeOne(stream []byte) (*Event, error) { return NewDecoder(bytes.NewReader(stream)).Decode() }
