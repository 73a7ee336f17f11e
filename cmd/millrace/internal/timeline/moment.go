// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"time"
)

// clocks are the formats of times without a date.
var clocks = []string{"15:04", "15:04:05"}

// Moment parses RFC 3339, or a time of day as its latest occurrence before now, in now's zone. Empty text
// and "now" are now.
func Moment(text string, now time.Time) (time.Time, error) {
	if text == "" || text == "now" {
		return now, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, form := range clocks {
		clock, err := time.Parse(form, text)
		if err != nil {
			continue
		}
		year, month, day := now.Date()
		of := func(day int) time.Time {
			return time.Date(year, month, day, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		}
		if at := of(day); !at.After(now) {
			return at, nil
		}
		return of(day - 1), nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time: write 03:12, 03:12:30 or 2026-11-26T03:12:00Z", text)
}
