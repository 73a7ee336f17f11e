// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

// followLive reads the aggregated API as long as pages request the state.
func (s *uiSource) followLive(ctx context.Context) {
	ticker := time.NewTicker(live.SampleInterval)
	defer ticker.Stop()
	var api *cluster.Live
	var later time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-ticker.C:
		}
		asked := time.Now()
		if !s.attended() || api == nil && asked.Before(later) {
			continue
		}
		var err error
		if api == nil {
			api, err = cluster.OpenLive(ctx, s.config, io.Discard)
		}
		if err == nil {
			err = s.readLive(ctx, api)
		}
		if err != nil {
			// The API may have been removed, or reinstalled with other resources.
			api = nil
			if noAnswer := s.noLive(asked, err); !noAnswer {
				later = asked.Add(openAgain)
			}
		}
	}
}

// noLive records the error, and reports whether the API is available but did not answer. Only then the last
// answer is kept, with its time.
func (s *uiSource) noLive(asked time.Time, err error) (noAnswer bool) {
	noAnswer = !errors.Is(err, cluster.ErrNoLive) && !errors.Is(err, cluster.ErrForbidden)
	s.announcementsOld.Store(true)
	s.put(func(next *view.State) {
		if !noAnswer {
			next.Traffic, next.Announcements, s.liveAnswered = nil, nil, time.Time{}
		}
		next.Live = outage(next.Live, asked, s.liveAnswered, err.Error())
		next.Live.Seen = s.liveAnswered
	})
	return noAnswer
}

// readLive reads traffic and announcements, either of which may be forbidden.
func (s *uiSource) readLive(ctx context.Context, api *cluster.Live) error {
	asked := time.Now()
	traffic, err := api.Traffic(ctx, "")
	if err != nil && !errors.Is(err, cluster.ErrForbidden) {
		return err
	}
	notes := []string{}
	if err != nil {
		traffic, notes = nil, append(notes, err.Error())
	}
	var announcements *livev1alpha1.VIPAnnouncementList
	old := s.announcementsOld.Swap(false)
	if old {
		announcements, err = api.Announcements(ctx, "")
		switch {
		case errors.Is(err, cluster.ErrForbidden):
			// Retry with the next sample.
			s.announcementsOld.Store(true)
			announcements, notes = nil, append(notes, err.Error())
		case err != nil:
			return err
		}
	}
	s.put(func(next *view.State) {
		next.Traffic, s.liveAnswered = traffic, asked
		if old {
			next.Announcements = announcements
		}
		if len(notes) == 0 {
			next.Live = nil
			return
		}
		next.Live = outage(next.Live, asked, time.Time{}, strings.Join(notes, "; "))
		next.Live.Seen = time.Time{}
	})
	return nil
}
