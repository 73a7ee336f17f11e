// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	"github.com/millrace-lb/millrace/cmd/internal/program"
	"github.com/millrace-lb/millrace/hack/catalogue"
)

func TestReference(t *testing.T) {
	flags := program.Flags("operator", io.Discard)
	_ = register(flags)
	catalogue.GoFlags(t, "operator", flags)
}
