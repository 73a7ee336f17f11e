// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// reporter is a running echo client that reports for each line "check" and at the end.
type reporter struct {
	name    string
	command *exec.Cmd
	stdin   io.WriteCloser
	reports *json.Decoder
	stderr  bytes.Buffer
}

// startReporter starts a client. End or the end of ctx stops it.
func (c *Cluster) startReporter(ctx context.Context, name string, args ...string) (*reporter, error) {
	args = append([]string{"exec", "client", "--", filepath.Join(c.root, "bin", "echo"), name}, args...)
	r := &reporter{name: name, command: exec.CommandContext(ctx, c.lab, args...)}
	r.command.Dir = c.root
	r.command.Cancel = func() error { return r.command.Process.Signal(os.Interrupt) }
	r.command.WaitDelay = 10 * time.Second
	r.command.Stderr = &r.stderr
	stdin, err := r.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := r.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.stdin, r.reports = stdin, json.NewDecoder(stdout)
	if err := r.command.Start(); err != nil {
		return nil, fmt.Errorf("echo %s: %w", name, err)
	}
	return r, nil
}

func (r *reporter) next(report any) error {
	if err := r.reports.Decode(report); err != nil {
		return fmt.Errorf("echo %s: read a report: %w: %s", r.name, errors.Join(err, r.End()), bytes.TrimSpace(r.stderr.Bytes()))
	}
	return nil
}

func (r *reporter) check(report any) error {
	if _, err := io.WriteString(r.stdin, "check\n"); err != nil {
		return fmt.Errorf("echo %s: %w: %s", r.name, errors.Join(err, r.End()), bytes.TrimSpace(r.stderr.Bytes()))
	}
	return r.next(report)
}

// End stops the client.
func (r *reporter) End() error {
	// It ends at the end of its input.
	_ = r.stdin.Close()
	for r.reports.More() {
		var last json.RawMessage
		if r.reports.Decode(&last) != nil {
			break
		}
	}
	if err := r.command.Wait(); err != nil {
		return fmt.Errorf("echo %s: %w: %s", r.name, err, bytes.TrimSpace(r.stderr.Bytes()))
	}
	return nil
}
