// SPDX-License-Identifier: Apache-2.0

// Package dashboards generates the Grafana dashboards of config/dashboards.
package dashboards

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Dashboard is a Grafana dashboard.
type Dashboard struct {
	// Name is the name of the file and the target of links.
	Name, Title string
	Variables   []Variable
	Rows        []Row
}

// Variable is a selector at the top of a dashboard. Its options are the values of a metric's label.
type Variable struct {
	Name, Metric, Label string
}

// Row is a row of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel shows the results of queries.
type Panel struct {
	Title string
	What  string
	// Kind is a panel type of Grafana: timeseries, stat, bargauge or table.
	Kind string
	// Unit is a unit of Grafana, such as pps.
	Unit    string
	Queries []Query
	// Bad is the smallest value that is red; 0 means no threshold.
	Bad     float64
	Stacked bool
}

// Query is a PromQL query. Legend is the format of the names of its series, such as {{node}}.
type Query struct{ Expr, Legend string }

const (
	width  = 24
	height = 8
)

// JSON returns the dashboard in the import format of Grafana.
func (d Dashboard) JSON() ([]byte, error) {
	var panels []any
	y, id := 0, 0
	next := func() int { id++; return id }
	for _, row := range d.Rows {
		panels = append(panels, map[string]any{
			"id": next(), "type": "row", "title": row.Title, "collapsed": false, "panels": []any{},
			"gridPos": map[string]int{"h": 1, "w": width, "x": 0, "y": y},
		})
		y++
		w := width / len(row.Panels)
		for i, panel := range row.Panels {
			made := panel.json()
			made["id"] = next()
			made["gridPos"] = map[string]int{"h": height, "w": w, "x": i * w, "y": y}
			panels = append(panels, made)
		}
		y += height
	}
	content, err := json.MarshalIndent(map[string]any{
		"uid": d.Name, "title": d.Title, "tags": []string{"millrace"}, "schemaVersion": 39, "editable": true,
		"time": map[string]string{"from": "now-3h", "to": "now"}, "refresh": "30s", "timezone": "browser",
		"graphTooltip": 1, "panels": panels, "templating": map[string]any{"list": d.variables()},
		"links": []any{map[string]any{
			"type": "dashboards", "tags": []string{"millrace"}, "title": "Millrace", "asDropdown": true, "keepTime": true, "includeVars": true,
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the dashboard %s: %w", d.Name, err)
	}
	return append(content, '\n'), nil
}

// source refers to the variable that selects a Prometheus server.
var source = map[string]string{"type": "prometheus", "uid": "${datasource}"}

func (d Dashboard) variables() []any {
	list := []any{map[string]any{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}}
	for _, variable := range d.Variables {
		list = append(list, map[string]any{
			"name": variable.Name, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
			"query":      variable.Query(),
			"includeAll": true, "multi": true, "allValue": ".*", "current": map[string]any{"text": "All", "value": "$__all"},
		})
	}
	return list
}

// Query returns the query for the options, in Grafana's syntax.
func (v Variable) Query() string { return fmt.Sprintf("label_values(%s, %s)", v.Metric, v.Label) }

func (p Panel) json() map[string]any {
	var targets []any
	for i, query := range p.Queries {
		target := map[string]any{
			"refId": string(rune('A' + i)), "datasource": source, "expr": query.Expr, "legendFormat": query.Legend,
		}
		if p.Kind != "timeseries" {
			target["instant"] = true
		}
		if p.Kind == "table" {
			target["format"] = "table"
		}
		targets = append(targets, target)
	}
	steps := []any{map[string]any{"color": "green", "value": nil}}
	if p.Bad > 0 {
		steps = append(steps, map[string]any{"color": "red", "value": p.Bad})
	}
	defaults := map[string]any{"unit": p.Unit, "min": 0, "thresholds": map[string]any{"mode": "absolute", "steps": steps}}
	if p.Kind == "timeseries" {
		custom := map[string]any{"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
		if p.Stacked {
			custom["stacking"] = map[string]string{"mode": "normal", "group": "A"}
		}
		defaults["custom"] = custom
	} else {
		defaults["noValue"] = "none"
	}
	return map[string]any{
		"type": p.Kind, "title": p.Title, "description": p.What, "datasource": source, "targets": targets,
		"fieldConfig": map[string]any{"defaults": defaults, "overrides": []any{}},
		"options":     p.options(),
	}
}

func (p Panel) options() map[string]any {
	switch p.Kind {
	case "timeseries":
		return map[string]any{
			"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": map[string]string{"mode": "multi", "sort": "desc"},
		}
	case "table":
		return map[string]any{"showHeader": true}
	}
	return map[string]any{"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}}}
}

// Queries returns all queries, including those of variables, in the PromQL that Prometheus receives.
func (d Dashboard) Queries() (queries []string) {
	for _, variable := range d.Variables {
		queries = append(queries, fmt.Sprintf("count by (%s) (%s)", variable.Label, variable.Metric))
	}
	for _, row := range d.Rows {
		for _, panel := range row.Panels {
			for _, query := range panel.Queries {
				queries = append(queries, strings.ReplaceAll(query.Expr, "$__rate_interval", "5m"))
			}
		}
	}
	return slices.Clip(queries)
}
