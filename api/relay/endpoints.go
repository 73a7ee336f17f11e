// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

var errRuns = errors.New("the change does not apply to the EndpointSlice")

// Diff returns the runs that compose after from before and new endpoints, and the indexes of the new
// endpoints in after. Equal texts must mean equal endpoints.
func Diff(before, after []string) (runs []Run, added []int) {
	places := make(map[string]int, len(before))
	for i, endpoint := range before {
		places[endpoint] = i
	}
	for i, endpoint := range after {
		place, kept := places[endpoint]
		last := len(runs) - 1
		switch {
		case !kept && last >= 0 && runs[last].New:
			runs[last].Count++
		case !kept:
			runs = append(runs, Run{New: true, Count: 1})
		case last >= 0 && !runs[last].New && runs[last].From+runs[last].Count == place:
			runs[last].Count++
		default:
			runs = append(runs, Run{From: place, Count: 1})
		}
		if !kept {
			added = append(added, i)
		}
	}
	return runs, added
}

// Apply returns the endpoints after a Change. It does not modify its arguments.
func Apply(before, added []discoveryv1.Endpoint, runs []Run) ([]discoveryv1.Endpoint, error) {
	total := 0
	for _, run := range runs {
		// EndpointSlices contain at most 1,000 endpoints (discovery.k8s.io/v1).
		if run.Count < 1 || run.Count > maxEndpoints || total > maxEndpoints {
			return nil, errRuns
		}
		total += run.Count
	}
	after := make([]discoveryv1.Endpoint, 0, total)
	for _, run := range runs {
		from, place := before, run.From
		if run.New {
			from, place = added, 0
		}
		if place < 0 || place > len(from) || len(from)-place < run.Count {
			return nil, errRuns
		}
		after = append(after, from[place:place+run.Count]...)
		if run.New {
			added = added[run.Count:]
		}
	}
	if len(added) > 0 {
		return nil, errRuns
	}
	return slices.Clip(after), nil
}
