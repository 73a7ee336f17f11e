// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// On any error of the aggregated API, commands query the agents (pods/exec), which have the same data. The
// error is printed only if they cannot replace the answer, warnings with their answer.

func announcedLive(ctx context.Context, env environment, config cluster.Config, named, running []string) (report.Agents, error) {
	var warnings bytes.Buffer
	api, err := cluster.OpenLive(ctx, config, &warnings)
	if err != nil {
		return report.Agents{}, err
	}
	one := ""
	if len(named) == 1 {
		if address, err := netip.ParseAddr(named[0]); err == nil {
			one = millracev1beta1.VIPName(address)
		}
	}
	list, err := api.Announcements(ctx, one)
	if err == nil && len(list.Answered) == 0 {
		err = errNoNodes
	}
	if err != nil {
		return report.Agents{}, err
	}
	announcements, err := report.AnnouncedLive(list, named, running)
	if err == nil {
		_, _ = warnings.WriteTo(env.stderr)
	}
	return announcements, err
}

// trafficLive returns the traffic of a namespace, or nil if the aggregated API does not answer.
func trafficLive(ctx context.Context, env environment, config cluster.Config, namespace string) *livev1alpha1.ServiceTrafficList {
	api, err := cluster.OpenLive(ctx, config, env.stderr)
	if err != nil {
		return nil
	}
	list, err := api.Traffic(ctx, namespace)
	if err != nil {
		return nil
	}
	return list
}

// sessionsLive warns of nodes that do not answer.
func sessionsLive(ctx context.Context, env environment, config cluster.Config, nodes []string) ([]consoleapi.BGP, error) {
	var warnings bytes.Buffer
	api, err := cluster.OpenLive(ctx, config, &warnings)
	if err != nil {
		return nil, err
	}
	list, err := api.Sessions(ctx)
	if err == nil && len(list.Answered) == 0 {
		err = errNoNodes
	}
	if err != nil {
		return nil, err
	}
	_, _ = warnings.WriteTo(env.stderr)
	known := slices.Concat(list.Answered, list.Silent)
	for _, node := range nodes {
		if !slices.Contains(known, node) {
			fmt.Fprintf(env.stderr, "millrace: %v\n", cluster.NoAgent(node, known))
		}
	}
	sessions := report.SessionsLive(list, nodes)
	if len(sessions) == 0 {
		return nil, errAgentsFailed
	}
	return sessions, nil
}

// errNoNodes is returned if the aggregated API has no data of any node, for example just after its start.
var errNoNodes = errors.New("live.millrace.io has no data of any node")

// joinLiveError adds the aggregated API's error to the agents' if both report a missing right.
func joinLiveError(err, liveErr error) error {
	if errors.Is(err, cluster.ErrForbidden) && errors.Is(liveErr, cluster.ErrForbidden) {
		return fmt.Errorf("%w; to read live.millrace.io instead: %s", err, strings.TrimPrefix(liveErr.Error(), cluster.ErrForbidden.Error()+": "))
	}
	return err
}

var errShow = errors.New("show the rates")

// runLive prints rates after each sample. It returns an error of the first request, and prints and retries
// later ones.
func (w *topWatch) runLive(ctx context.Context, config cluster.Config) error {
	var warnings bytes.Buffer
	api, err := cluster.OpenLive(ctx, config, &warnings)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(live.SampleInterval)
	defer ticker.Stop()
	for shown := false; ; {
		list, err := api.Traffic(ctx, w.namespace)
		if err == nil && list.AnsweredNodes == 0 {
			err = errNoNodes
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !shown:
			return err
		case err != nil:
			fmt.Fprintf(w.env.stderr, "millrace: %v\n", err)
		default:
			shown = true
			_, _ = warnings.WriteTo(w.env.stderr)
			if err := w.showRates(report.RatesLive(list, w.namespace, w.vip)); err != nil {
				return fmt.Errorf("%w: %w", errShow, err)
			}
		}
		if w.once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
