// SPDX-License-Identifier: Apache-2.0

// Package relay tells agents what changes of EndpointSlices, in place of the API server: it watches
// there once, and sends of a slice what changed. See api/relay.
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
	// aheadFor is how long an agent waits that knows more than this relay.
	aheadFor = 3 * time.Second
	// cutFor is how long the API server may be away. Then agents look for another relay, or ask
	// the API server itself: it may be only this relay that does not reach it.
	cutFor = 10 * time.Second
	// gather is how long a change waits for others, and between is the time from one write to the next:
	// thousands of streams are expensive to write to. Agents wait for 40 ms themselves.
	gather, between = 5 * time.Millisecond, 25 * time.Millisecond
	// writeFor is how long a write to an agent may take.
	writeFor = 30 * time.Second
	// streamFor is for how long agents stay, at least; at most twice as long. Then they begin
	// anew, maybe at another relay: so one that was restarted gets its part.
	streamFor = 10 * time.Minute
	// room bounds what is put together for one write.
	room = 1 << 16
)

// Handler answers agents. Who they are has been found out before.
type Handler struct {
	log    *Log
	logger logr.Logger
	// ended is closed when all streams are to end.
	ended <-chan struct{}
}

// NewHandler answers from a log until the context ends.
func NewHandler(ctx context.Context, log *Log, logger logr.Logger) *Handler {
	return &Handler{log: log, logger: logger, ended: ctx.Done()}
}

func (h *Handler) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodGet {
		http.Error(response, "only GET is answered", http.StatusMethodNotAllowed)
		return
	}
	asked, err := relay.ParseRequest(request.URL.Query())
	if err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.log.Ready(time.Now().Add(-cutFor)); err != nil {
		http.Error(response, err.Error(), http.StatusServiceUnavailable)
		return
	}
	h.await(request.Context(), asked.Since)
	reader, first, err := h.log.Open(asked)
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

// await waits for a version: the agent may come from a relay that is quicker.
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

// stream is the answer to one agent.
type stream struct {
	response   http.ResponseWriter
	controller *http.ResponseController
	reader     *Reader
	log        *Log
	ended      <-chan struct{}
	// joined is what is put together for one write, wrote when the last one was.
	joined []byte
	wrote  time.Time
}

// run writes what is first, and then what changes.
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

// pause waits for more changes. It is false where the stream is to end.
func (s *stream) pause(ctx context.Context) bool {
	select {
	case <-time.After(max(gather, time.Until(s.wrote.Add(between)))):
		return true
	case <-ctx.Done():
		return false
	case <-s.ended:
		return false
	}
}

// bookmark also shows the agent that the relay is there. It is an error to have no connection with
// the API server.
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
		s.joined = s.joined[:0]
		for len(events) > 0 && len(s.joined) < room {
			s.joined = append(s.joined, events[0]...)
			events = events[1:]
		}
		if err := s.controller.SetWriteDeadline(time.Now().Add(writeFor)); err != nil {
			return err
		}
		if _, err := s.response.Write(s.joined); err != nil {
			return err
		}
	}
	// A buffer as large as a snapshot needs is not kept for hours.
	if cap(s.joined) > room/16 {
		s.joined = nil
	}
	s.wrote = time.Now()
	return s.controller.Flush()
}
