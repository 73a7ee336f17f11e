// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"testing"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

func TestCatalogue(t *testing.T) {
	expiry, trusted := newGauges()
	catalogue.Own(t, "webhook", expiry, trusted)
}
