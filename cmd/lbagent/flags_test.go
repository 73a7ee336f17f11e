// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

func TestReference(t *testing.T) {
	root := command(func(string) string { return "" }, strings.NewReader(""), io.Discard, io.Discard)
	flags := pflag.NewFlagSet("lbagent", pflag.ContinueOnError)
	flags.AddFlagSet(root.Flags())
	flags.AddFlagSet(root.PersistentFlags())
	catalogue.Flags(t, "lbagent", flags)
}
