// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Reviews bound what clients with made-up tokens can make the API server do, in requests
// per second of each node. Answers are kept for a minute.
const (
	reviewRate  = 5
	reviewBurst = 10
)

// Reviewed returns a filter of requests. Those pass whose bearer token is valid, and whose
// user may do their verb on their path (nonResourceURLs of a ClusterRole).
func (c *Clients) Reviewed() (func(http.Handler) http.Handler, error) {
	config := rest.CopyConfig(c.config)
	config.QPS, config.Burst = reviewRate, reviewBurst
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("set up the connection to %s: %w", config.Host, err)
	}
	filter, err := filters.WithAuthenticationAndAuthorization(config, connection)
	if err != nil {
		return nil, fmt.Errorf("set up reviews of tokens: %w", err)
	}
	return func(handler http.Handler) http.Handler {
		// A line for each bad token would let anybody fill the log. The filter returns no error.
		reviewed, err := filter(logr.Discard(), handler)
		if err != nil {
			return http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
				http.Error(response, err.Error(), http.StatusInternalServerError)
			})
		}
		return reviewed
	}, nil
}
