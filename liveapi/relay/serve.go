// SPDX-License-Identifier: Apache-2.0

// Package relay sends changes of EndpointSlices to agents in place of the API server (api/relay).
package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/relay"
)

const (
	// aheadFor is the maximum time that a request waits for a version that this relay does not have yet.
	aheadFor = 3 * time.Second
	// cutFor is the time after which agents are rejected if the API server is unreachable, because only this
	// relay may be affected.
	cutFor = 10 * time.Second
	// coalesceTime is the time that a change waits for further changes, and minWriteInterval the minimum
	// interval between writes. Writes to thousands of streams are expensive.
	coalesceTime, minWriteInterval = 5 * time.Millisecond, 25 * time.Millisecond
	// writeFor is the time limit for a write to an agent.
	writeFor = 30 * time.Second
	// streamFor is the minimum duration of a stream, and half the maximum. Agents reconnect then, so that a
	// restarted relay serves its share of them.
	streamFor = 10 * time.Minute
	// room limits the size of one write in bytes.
	room = 1 << 16
)

// Handler serves requests of agents. They must be authenticated already.
type Handler struct {
	log    *Log
	logger logr.Logger
	ended  <-chan struct{}
}

// NewHandler returns a handler that serves from a log until the context ends.
func NewHandler(ctx context.Context, log *Log, logger logr.Logger) *Handler {
	return &Handler{log: log, logger: logger, ended: ctx.Done()}
}

func (h *Handler) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodGet {
		http.Error(response, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	}
	parsed, err := relay.ParseRequest(request.URL.Query())
	if err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.log.Ready(time.Now().Add(-cutFor)); err != nil {
		http.Error(response, err.Error(), http.StatusServiceUnavailable)
		return
	}
	h.await(request.Context(), parsed.Since)
	reader, first, err := h.log.Open(parsed)
	if err != nil {
		http.Error(response, err.Error(), status(err))
		return
	}
	response.Header().Set("Content-Type", "application/octet-stream")
	response.Header().Set(relay.HeaderBookmarkEvery, strconv.Itoa(int(relay.BookmarkEvery.Seconds())))
	s := stream{response: response, controller: http.NewResponseController(response), reader: reader, log: h.log, ended: h.ended}
	if err := s.run(request.Context(), first); err != nil {
		h.logger.V(1).Info("A stream to an agent ended", "agent", request.RemoteAddr, "error", err.Error())
	}
}

func status(err error) int {
	if errors.Is(err, errExpired) {
		return http.StatusGone
	}
	return http.StatusServiceUnavailable
}

// await waits up to aheadFor until the log has a version, because the agent may have received it from another
// relay.
func (h *Handler) await(ctx context.Context, version uint64) {
	ctx, cancel := context.WithTimeout(ctx, aheadFor)
	defer cancel()
	for changed := h.log.Known(version); changed != nil; changed = h.log.Known(version) {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-h.ended:
			return
		}
	}
}

type stream struct {
	response   http.ResponseWriter
	controller *http.ResponseController
	reader     *Reader
	log        *Log
	ended      <-chan struct{}
	// buffer contains the events of one write. lastWrite is the time of the last write.
	buffer    []byte
	lastWrite time.Time
}

func (s *stream) run(ctx context.Context, first [][]byte) error {
	if err := s.write(first); err != nil {
		return err
	}
	end := time.NewTimer(streamFor + rand.N(streamFor))
	defer end.Stop()
	bookmarks := time.NewTicker(relay.BookmarkEvery)
	defer bookmarks.Stop()
	for {
		events, changed, err := s.reader.Next()
		if err != nil {
			return err
		}
		if len(events) > 0 {
			if err := s.write(events); err != nil {
				return err
			}
			continue
		}
		select {
		case <-changed:
			if !s.pause(ctx) {
				return nil
			}
		case <-bookmarks.C:
			if err := s.bookmark(); err != nil {
				return err
			}
		case <-end.C:
			return nil
		case <-ctx.Done():
			return nil
		case <-s.ended:
			return nil
		}
	}
}

// pause waits for further changes, and returns false if the stream must end.
func (s *stream) pause(ctx context.Context) bool {
	select {
	case <-time.After(max(coalesceTime, time.Until(s.lastWrite.Add(minWriteInterval)))):
		return true
	case <-ctx.Done():
		return false
	case <-s.ended:
		return false
	}
}

// bookmark writes a bookmark, so that the agent detects a relay that hangs. It returns an error if the API
// server is unreachable.
func (s *stream) bookmark() error {
	if err := s.log.Ready(time.Now().Add(-cutFor)); err != nil {
		return err
	}
	event, err := s.reader.Bookmark()
	if err != nil || event == nil {
		return err
	}
	return s.write([][]byte{event})
}

func (s *stream) write(events [][]byte) error {
	for len(events) > 0 {
		s.buffer = s.buffer[:0]
		for len(events) > 0 && len(s.buffer) < room {
			s.buffer = append(s.buffer, events[0]...)
			events = events[1:]
		}
		if err := s.controller.SetWriteDeadline(time.Now().Add(writeFor)); err != nil {
			return err
		}
		if _, err := s.response.Write(s.buffer); err != nil {
			return err
		}
	}
	// Release the large buffer of a snapshot, because the stream is long-lived.
	if cap(s.buffer) > room/16 {
		s.buffer = nil
	}
	s.lastWrite = time.Now()
	return s.controller.Flush()
}
