// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func operatorMetrics(t *testing.T, e *environment) {
	address := freeAddress(t)
	e.run(t, "--metrics-bind-address="+address, "--metrics-secure=false")
	e.pool(t, "main", nil, "203.0.113.4/31")
	e.advertisement(t, "all", nil)
	e.session(t, "node1", millracev1beta1.SessionEstablished)
	e.addresses(t, e.service(t, "first"), "203.0.113.4")
	e.addresses(t, e.service(t, "second"), "203.0.113.5")
	e.condition(t, e.service(t, "third"), metav1.ConditionFalse, millracev1beta1.ReasonPoolExhausted, "")
	scraped(t, address,
		`millrace_pool_addresses{pool="main",state="Bound"} 2`, `millrace_pool_addresses{pool="main",state="Free"} 0`,
		`millrace_services_pending{reason="PoolExhausted"} 1`, `millrace_vips_announcers{nodes="one"} 2`)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func getPage(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %s", path, response.Status)
	}
	return io.ReadAll(response.Body)
}

func scraped(t *testing.T, address string, lines ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		body, err := getPage(ctx, address, "/metrics")
		if err != nil {
			return err
		}
		for _, line := range lines {
			if !strings.Contains(string(body), line+"\n") {
				return fmt.Errorf("metrics do not contain %q", line)
			}
		}
		return nil
	})
}
