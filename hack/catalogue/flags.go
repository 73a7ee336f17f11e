// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Flags compares or writes the section with a program's flags.
func Flags(t *testing.T, program string, flags *pflag.FlagSet) {
	t.Helper()
	var text strings.Builder
	text.WriteString("| Flag | Default | What |\n|---|---|---|")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if f.Usage == "" {
			t.Errorf("%s --%s has no usage", program, f.Name)
		}
		value := f.DefValue
		if value != "" && value != "[]" {
			value = "`" + value + "`"
		} else {
			value = ""
		}
		fmt.Fprintf(&text, "\n| `--%s` | %s | %s |", f.Name, value, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	HoldReference(t, "flags of "+program, text.String())
}

// GoFlags is like Flags, for a program that uses package flag.
func GoFlags(t *testing.T, program string, flags *flag.FlagSet) {
	t.Helper()
	all := pflag.NewFlagSet(program, pflag.ContinueOnError)
	all.AddGoFlagSet(flags)
	Flags(t, program, all)
}
