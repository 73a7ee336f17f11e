// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Users of the API server; their tokens equal their names.
const (
	scraper  = "prometheus"
	stranger = "stranger"
)

// Metrics are served to authenticated users with permission only.
func TestAgentMetrics(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: scraper},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "millrace-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: scraper}},
	})
	w.start()
	w.Await(30*time.Second, "the agent serves metrics", func() bool {
		code, body := w.scrape(scraper)
		return code == http.StatusOK && strings.Contains(body, "millrace_build_info")
	})
	for token, want := range map[string]int{
		"":       http.StatusUnauthorized,
		stranger: http.StatusForbidden,
		// The filter's response to a token unknown to the API server.
		"made-up": http.StatusInternalServerError,
	} {
		// A busy API server may respond too late; metrics are never served meanwhile.
		w.Await(30*time.Second, fmt.Sprintf("status %d with token %q", want, token), func() bool {
			code, body := w.scrape(token)
			if code == http.StatusOK || strings.Contains(body, "millrace_") {
				t.Errorf("token %q: status %d, want %d; body %s", token, code, want, body)
			}
			return code == want
		})
	}
	if response, err := http.Get("http://127.0.0.1:7480/metrics"); err == nil {
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("metrics are served over plain HTTP")
		}
	}
	w.retainConnections()
}

func (w *world) scrape(token string) (int, string) {
	w.t.Helper()
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "https://127.0.0.1:7480/metrics", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}
