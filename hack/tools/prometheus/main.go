// SPDX-License-Identifier: Apache-2.0

// Command prometheus parses queries and evaluates rules over synthetic series, as promtool does. It reads a
// Request from standard input and writes an Answer, both in JSON.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Request is the input.
type Request struct {
	Queries []string `json:"queries"`
	// Rules is the content of a file of rules. Each case evaluates them separately.
	Rules string `json:"rules"`
	Cases []Case `json:"cases"`
	// Objects are resources of the Prometheus operator in JSON.
	Objects []json.RawMessage `json:"objects"`
}

// Case contains series, and a time at which alerts are evaluated.
type Case struct {
	// Series are in the notation of promtool: `name{label="value"}`, and values such as 0+10x60, one per
	// Interval.
	Series   []Series `json:"series"`
	Interval string   `json:"interval"`
	At       string   `json:"at"`
}

type Series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// Answer is the output. Its lists are in the order of the Request.
type Answer struct {
	Queries []Query  `json:"queries"`
	Cases   []Result `json:"cases"`
	Objects []string `json:"objects"`
}

// Query contains the metrics and labels of a query, or an error.
type Query struct {
	Error     string     `json:"error,omitempty"`
	Selectors []Selector `json:"selectors,omitempty"`
	// Grouping are the labels in aggregations and vector matches of the query.
	Grouping []string `json:"grouping,omitempty"`
}

// Selector contains the metric and the labels of a selector.
type Selector struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels,omitempty"`
}

// Result contains the alerts that fire, or an error.
type Result struct {
	Error  string  `json:"error,omitempty"`
	Alerts []Alert `json:"alerts,omitempty"`
}

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
		return fmt.Errorf("read the request: %w", err)
	}
	answer := Answer{Queries: make([]Query, 0, len(request.Queries)), Cases: make([]Result, 0, len(request.Cases))}
	for _, query := range request.Queries {
		answer.Queries = append(answer.Queries, parse(query))
	}
	for _, object := range request.Objects {
		problem := ""
		if err := decode(object); err != nil {
			problem = err.Error()
		}
		answer.Objects = append(answer.Objects, problem)
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

// decode decodes an object as the Prometheus operator does, and returns an error for unknown fields.
func decode(object []byte) error {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(object, &kind); err != nil {
		return err
	}
	if kind.APIVersion != monitoringv1.SchemeGroupVersion.String() {
		return fmt.Errorf("apiVersion is %q, want %s", kind.APIVersion, monitoringv1.SchemeGroupVersion)
	}
	target := map[string]any{
		monitoringv1.PodMonitorsKind: &monitoringv1.PodMonitor{}, monitoringv1.PrometheusRuleKind: &monitoringv1.PrometheusRule{},
	}[kind.Kind]
	if target == nil {
		return fmt.Errorf("kind %q is not known here", kind.Kind)
	}
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.DisallowUnknownFields()
	return decoder.Decode(target)
}
