// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func TestObservabilityParameters(t *testing.T) {
	found, problems := Parse(&corev1.ConfigMap{Data: map[string]string{
		ResponseTimeout: "5m", AccessLog: "true", RouteMetrics: "true",
		TracingEndpoint: "http://collector.observability:4317", TracingRatio: "0.25", TLSPolicy: "old",
	}}, false)
	want := model.Parameters{
		ResponseTimeout: 5 * time.Minute, AccessLog: true, RouteMetrics: true, TracingEndpoint: "http://collector.observability:4317", TracingRatio: "0.25",
		TLSPolicy: resource.Listener_OLD,
	}
	if !reflect.DeepEqual(found.Parameters, want) || len(problems) > 0 {
		t.Errorf("parameters = %+v, problems %v", found.Parameters, problems)
	}
	for name, texts := range map[string][]string{
		AccessLog:       {"yes", ""},
		TLSPolicy:       {"Modern", ""},
		RouteMetrics:    {"1"},
		ResponseTimeout: {"0s", "1", "-1m", "169h"},
		TracingEndpoint: {"collector:4317", "http://collector", "ftp://collector:1", "http://user@collector:1", "http://collector:1/v1", ""},
		TracingRatio:    {"-0.1", "1.1", "NaN", "all", ""},
	} {
		for _, text := range texts {
			found, problems := Parse(&corev1.ConfigMap{Data: map[string]string{name: text}}, false)
			if !reflect.DeepEqual(found.Parameters, model.Parameters{}) || len(problems) != 1 || problems[0].Key != name {
				t.Errorf("%s: %q parsed as %+v, problems %v", name, text, found.Parameters, problems)
			}
		}
	}
}
