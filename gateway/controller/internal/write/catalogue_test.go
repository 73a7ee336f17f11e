// SPDX-License-Identifier: Apache-2.0

package write

import (
	"testing"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

func TestCatalogue(t *testing.T) {
	conflicting.WithLabelValues("some").Set(0)
	expiries.WithLabelValues("some", "secret").Set(0)
	t.Cleanup(conflicting.Reset)
	t.Cleanup(expiries.Reset)
	catalogue.Own(t, "gateway-leader", conflicting, expiries)
}
