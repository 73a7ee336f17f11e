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
		case <-s.wakeLive:
		case <-ticker.C:
		}
		sent := time.Now()
		if !s.isActive() || api == nil && sent.Before(later) {
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
			if unanswered := s.recordLiveOutage(sent, err); !unanswered {
				later = sent.Add(openRetry)
			}
		}
	}
}

// recordLiveOutage records the error, and reports whether the API is available but did not answer. Only
// then the last answer is kept, with its time.
func (s *uiSource) recordLiveOutage(sent time.Time, err error) (unanswered bool) {
	unanswered = !errors.Is(err, cluster.ErrNoLive) && !errors.Is(err, cluster.ErrForbidden)
	s.announcementsStale.Store(true)
	s.update(func(next *view.State) {
		if !unanswered {
			next.Traffic, next.Announcements, s.liveObservedAt = nil, nil, time.Time{}
		}
		next.LiveOutage = outage(next.LiveOutage, sent, s.liveObservedAt, err.Error())
		next.LiveOutage.Seen = s.liveObservedAt
	})
	return unanswered
}

// readLive reads traffic and announcements, either of which may be forbidden.
func (s *uiSource) readLive(ctx context.Context, api *cluster.Live) error {
	sent := time.Now()
	traffic, err := api.Traffic(ctx, "")
	if err != nil && !errors.Is(err, cluster.ErrForbidden) {
		return err
	}
	notes := []string{}
	if err != nil {
		traffic, notes = nil, append(notes, err.Error())
	}
	var announcements *livev1alpha1.VIPAnnouncementList
	old := s.announcementsStale.Swap(false)
	if old {
		announcements, err = api.Announcements(ctx, "")
		switch {
		case errors.Is(err, cluster.ErrForbidden):
			// Retry with the next sample.
			s.announcementsStale.Store(true)
			announcements, notes = nil, append(notes, err.Error())
		case err != nil:
			return err
		}
	}
	s.update(func(next *view.State) {
		next.Traffic, s.liveObservedAt = traffic, sent
		if old {
			next.Announcements = announcements
		}
		if len(notes) == 0 {
			next.LiveOutage = nil
			return
		}
		next.LiveOutage = outage(next.LiveOutage, sent, time.Time{}, strings.Join(notes, "; "))
		next.LiveOutage.Seen = time.Time{}
	})
	return nil
}
