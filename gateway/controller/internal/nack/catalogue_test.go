// SPDX-License-Identifier: Apache-2.0

package nack

import (
	"testing"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

func TestCatalogue(t *testing.T) {
	rejecting.WithLabelValues("some").Set(0)
	t.Cleanup(rejecting.Reset)
	catalogue.Own(t, "gateway", rejecting)
}
