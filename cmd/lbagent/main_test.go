// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func noEnvironment(string) string { return "" }

func TestVersion(t *testing.T) {
	for _, argument := range []string{"version", "--version"} {
		var out bytes.Buffer
		cmd := command(noEnvironment, strings.NewReader(""), &out, &out)
		cmd.SetArgs([]string{argument})
		if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != "dev\n" {
			t.Errorf("%s printed %q, error %v", argument, out.String(), err)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no node":           {nil, "--node-name"},
		"uplink":            {[]string{"--node-name=a", "--uplinks=eth["}, "--uplinks"},
		"size":              {[]string{"--node-name=a", "--max-node-tables=0"}, "--max-node-tables is 0"},
		"delay":             {[]string{"--node-name=a", "--withdraw-delay=-1s"}, "--withdraw-delay"},
		"level":             {[]string{"--node-name=a", "--log-level=loud"}, "--log-level"},
		"kubeconfig":        {[]string{"--node-name=a", "--kubeconfig=/nowhere/config"}, "/nowhere/config"},
		"output":            {[]string{"dump", "--output=yaml"}, "--output"},
		"argument":          {[]string{"start"}, "start"},
		"several at a time": {[]string{"--max-connections=-1", "--max-vips=0"}, "--max-vips is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command(noEnvironment, strings.NewReader(""), &out, &out)
			cmd.SetArgs(test.args)
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %s", err, test.want)
			}
		})
	}
}

func TestFlagsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(noEnvironment, strings.NewReader(""), io.Discard, io.Discard)
	for _, flags := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(flag *pflag.Flag) {
			if !bytes.Contains(page, []byte("`--"+flag.Name+"`")) {
				t.Errorf("docs/install.md does not name --%s", flag.Name)
			}
		})
	}
}

func TestNodeNameFromEnvironment(t *testing.T) {
	var out bytes.Buffer
	cmd := command(func(name string) string {
		if name == "NODE_NAME" {
			return "node1"
		}
		return ""
	}, strings.NewReader(""), &out, &out)
	if got := cmd.Flags().Lookup("node-name").DefValue; got != "node1" {
		t.Errorf("node name %q, want node1", got)
	}
}

func TestCleanup(t *testing.T) {
	root := filepath.Join(t.TempDir(), "millrace")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "objects"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, flags ...string) error {
		var out bytes.Buffer
		cmd := command(noEnvironment, strings.NewReader(""), &out, &out)
		cmd.SetArgs(append([]string{"cleanup", "--pin-root=" + root, "--state-dir=" + state}, flags...))
		return cmd.ExecuteContext(ctx)
	}
	if err := run(t.Context(), "--check"); err == nil || !strings.Contains(err.Error(), root) {
		t.Errorf("before: error %v, want one with %s", err, root)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "--wait") }()
	deadline := time.After(10 * time.Second)
	for run(t.Context(), "--check") != nil {
		select {
		case err := <-ended:
			t.Fatalf("cleanup --wait ended with %v", err)
		case <-deadline:
			t.Fatal("cleanup --wait has removed nothing")
		case <-time.After(10 * time.Millisecond):
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("cleanup --wait did not wait, but ended with %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := os.Stat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the checkpoint is still there: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("cleanup --wait ended with %v", err)
	}
}
