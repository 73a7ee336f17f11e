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

// reviewRate and reviewBurst limit token reviews per second and node, and thus the load that requests with
// invalid tokens cause on the API server. Results are cached for a minute.
const (
	reviewRate  = 5
	reviewBurst = 10
)

// Reviewed returns a filter for HTTP requests. It requires a valid bearer token whose user may use the verb on
// the path (nonResourceURLs of a ClusterRole).
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
		// Invalid tokens are not logged, since any client could flood the log. The filter returns no error.
		reviewed, err := filter(logr.Discard(), handler)
		if err != nil {
			return http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
				http.Error(response, err.Error(), http.StatusInternalServerError)
			})
		}
		return reviewed
	}, nil
}
