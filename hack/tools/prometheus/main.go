// SPDX-License-Identifier: Apache-2.0

// Command prometheus tells what Prometheus makes of queries and alerts: it parses queries, and
// evaluates rules over made series, by the libraries that promtool does it with. It reads a Request
// as JSON from its input, and writes an Answer.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// Request is what is asked.
type Request struct {
	// Queries are in PromQL.
	Queries []string `json:"queries"`
	// Rules is a file of rules. Each case is evaluated by them alone.
	Rules string `json:"rules"`
	Cases []Case `json:"cases"`
}

// Case are series, and a time at which alerts are looked at.
type Case struct {
	// Series are in the notation of promtool: `name{label="value"}`, and values as 0+10x60, one
	// each Interval.
	Series   []Series `json:"series"`
	Interval string   `json:"interval"`
	At       string   `json:"at"`
}

// Series is one of a case.
type Series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// Answer is to a Request, each in its order.
type Answer struct {
	Queries []Query  `json:"queries"`
	Cases   []Result `json:"cases"`
}

// Query is what a query asks for.
type Query struct {
	Error     string     `json:"error,omitempty"`
	Selectors []Selector `json:"selectors,omitempty"`
	// Grouping are the labels by which it sums or matches.
	Grouping []string `json:"grouping,omitempty"`
}

// Selector is a metric, and the labels by which it is selected.
type Selector struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels,omitempty"`
}

// Result are the alerts that fire.
type Result struct {
	Error  string  `json:"error,omitempty"`
	Alerts []Alert `json:"alerts,omitempty"`
}

// Alert is one that fires.
type Alert struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus:", err)
		os.Exit(1)
	}
}

func run() error {
	var request Request
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	answer := Answer{Queries: make([]Query, 0, len(request.Queries)), Cases: make([]Result, 0, len(request.Cases))}
	for _, query := range request.Queries {
		answer.Queries = append(answer.Queries, parse(query))
	}
	if len(request.Cases) > 0 {
		file, err := os.CreateTemp("", "rules")
		if err != nil {
			return err
		}
		defer os.Remove(file.Name())
		if _, err := file.WriteString(request.Rules); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
		for _, each := range request.Cases {
			result := Result{}
			if result.Alerts, err = evaluate(file.Name(), each); err != nil {
				result.Error = err.Error()
			}
			answer.Cases = append(answer.Cases, result)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}
