// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

var promQL = parser.NewParser(parser.Options{})

func parse(text string) Query {
	expression, err := promQL.ParseExpr(text)
	if err != nil {
		return Query{Error: err.Error()}
	}
	var query Query
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			selector := Selector{Name: node.Name}
			for _, matcher := range node.LabelMatchers {
				if matcher.Name != labels.MetricName {
					selector.Labels = append(selector.Labels, matcher.Name)
				}
			}
			query.Selectors = append(query.Selectors, selector)
		case *parser.AggregateExpr:
			query.Grouping = append(query.Grouping, node.Grouping...)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				query.Grouping = append(query.Grouping, node.VectorMatching.MatchingLabels...)
				query.Grouping = append(query.Grouping, node.VectorMatching.Include...)
			}
		}
		return nil
	})
	return query
}

// evaluate evaluates the rules at each interval and returns the alerts that fire at a time, as promtool does.
func evaluate(file string, wanted Case) (alerts []Alert, err error) {
	interval, err := model.ParseDuration(wanted.Interval)
	if err != nil {
		return nil, err
	}
	at, err := model.ParseDuration(wanted.At)
	if err != nil {
		return nil, err
	}
	load := fmt.Sprintf("load %v\n", interval)
	for _, series := range wanted.Series {
		load += fmt.Sprintf("  %s %s\n", series.Series, series.Values)
	}
	suite, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: promQL})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, suite.Close()) }()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), AppendableV2: suite.Storage(),
		Context: context.Background(), NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger: promslog.NewNopLogger(), Parser: promQL,
	})
	groups, problems := manager.LoadGroups(time.Duration(interval), labels.EmptyLabels(), "", nil, false, file)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, rule := range alerting(groups) {
		rule.SetRestored(true)
	}
	for now := time.Unix(0, 0).UTC(); !now.After(time.Unix(0, 0).Add(time.Duration(at))); now = now.Add(time.Duration(interval)) {
		suite.WithSamplesTill(now, func(loadError error) {
			err = errors.Join(err, loadError)
			for _, group := range groups {
				group.Eval(suite.Context(), now)
				for _, rule := range group.Rules() {
					if rule.LastError() != nil {
						err = errors.Join(err, fmt.Errorf("rule %s: %w", rule.Name(), rule.LastError()))
					}
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	for _, rule := range alerting(groups) {
		for _, active := range rule.ActiveAlerts() {
			if active.State == rules.StateFiring {
				alerts = append(alerts, Alert{rule.Name(), active.Labels.Map(), active.Annotations.Map()})
			}
		}
	}
	return alerts, nil
}

func alerting(groups map[string]*rules.Group) (found []*rules.AlertingRule) {
	for _, group := range groups {
		for _, rule := range group.Rules() {
			if rule, ok := rule.(*rules.AlertingRule); ok {
				found = append(found, rule)
			}
		}
	}
	return found
}
