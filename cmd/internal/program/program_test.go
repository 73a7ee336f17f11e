// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"errors"
	"flag"
	"testing"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name      string
		arguments []string
		done      bool
		stdout    string
		err       string
	}{
		{name: "nothing"},
		{name: "a flag", arguments: []string{"--colour=red"}},
		{name: "the version", arguments: []string{"--version"}, done: true, stdout: "v1.2.3\n"},
		{name: "not the version", arguments: []string{"--version=false"}},
		{name: "help", arguments: []string{"--help"}, err: flag.ErrHelp.Error()},
		{name: "an unknown flag", arguments: []string{"--size"}, err: "flag provided but not defined: -size"},
		{name: "an argument", arguments: []string{"start"}, err: `unexpected argument "start": all settings are flags`},
	} {
		var stdout, stderr bytes.Buffer
		flags := Flags("program", &stderr)
		flags.String("colour", "", "")
		done, err := Parse(flags, test.arguments, "v1.2.3", &stdout)
		if err == nil {
			err = errors.New("")
		}
		if done != test.done || stdout.String() != test.stdout || err.Error() != test.err {
			t.Errorf("%s: %t, %q, %q, want %t, %q, %q", test.name, done, stdout.String(), err, test.done, test.stdout, test.err)
		}
	}
}

func TestVersion(t *testing.T) {
	if got := Version("v1.2.3"); got != "v1.2.3" {
		t.Errorf("%q, want what the linker set", got)
	}
	if got := Version(""); got == "" {
		t.Error("without a version of the linker: want another")
	}
}
