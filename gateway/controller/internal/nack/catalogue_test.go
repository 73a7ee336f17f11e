// SPDX-License-Identifier: Apache-2.0

package nack

import (
	"testing"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

func TestCatalogue(t *testing.T) {
	refusing.WithLabelValues("some").Set(0)
	t.Cleanup(refusing.Reset)
	catalogue.Own(t, "gateway", refusing)
}
