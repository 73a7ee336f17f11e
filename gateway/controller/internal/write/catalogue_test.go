// SPDX-License-Identifier: Apache-2.0

package write

import (
	"testing"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

// The page lists what the leader exports.
func TestCatalogue(t *testing.T) {
	contested.WithLabelValues("some").Set(0)
	t.Cleanup(contested.Reset)
	catalogue.Own(t, "gateway-leader", contested)
}
