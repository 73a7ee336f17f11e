// SPDX-License-Identifier: Apache-2.0

// Command commits verifies commit messages: the subject must be "area: verb object" with at most 72
// columns, followed by a body.
//
//	commits FILE         verifies the message in a file, as the hook commit-msg
//	commits -since BASE  verifies all commits after BASE except merges
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

const maxColumns = 72

// subject matches "area: verb object". The area is a package, a directory or a list of them.
var subject = regexp.MustCompile(`^[\w./{},* -]+: [a-z][\w-]* \S`)

func main() {
	since := flag.String("since", "", "verify the commits after this `commit`")
	flag.Parse()
	if err := run(*since, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "commits:", err)
		os.Exit(1)
	}
}

func run(since string, files []string) error {
	if since != "" {
		return checkHistory(since)
	}
	if len(files) != 1 {
		return errors.New("usage: commits FILE | commits -since BASE")
	}
	message, err := os.ReadFile(files[0])
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	return check(string(message))
}

// checkHistory verifies the messages of commits after base. It verifies nothing in a clone without base, such
// as a shallow one.
func checkHistory(base string) error {
	if err := exec.Command("git", "merge-base", "--is-ancestor", base, "HEAD").Run(); err != nil {
		fmt.Fprintf(os.Stderr, "commits: messages are not verified: this clone does not contain %s\n", base)
		return nil
	}
	log, err := exec.Command("git", "log", "-z", "--no-merges", "--format=%h%n%B", base+"..HEAD").Output()
	if err != nil {
		return fmt.Errorf("git log %s..HEAD: %w", base, err)
	}
	var problems []error
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(log), "\x00"), "\x00") {
		hash, message, _ := strings.Cut(entry, "\n")
		if err := check(message); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", hash, err))
		}
	}
	return errors.Join(problems...)
}

// check returns the first problem of a message. Lines that start with # are comments.
func check(message string) error {
	var lines []string
	for line := range strings.Lines(message) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	text := strings.TrimSpace(strings.Join(lines, "\n"))
	first, body, _ := strings.Cut(text, "\n")
	switch {
	case !subject.MatchString(first):
		return fmt.Errorf("subject %q: must be \"area: verb object\", such as \"bpf: drop packets without a tag\"", first)
	case len(first) > maxColumns:
		return fmt.Errorf("subject %q: has %d columns; at most %d are allowed", first, len(first), maxColumns)
	case strings.HasSuffix(first, "."):
		return fmt.Errorf("subject %q: must not end with a period", first)
	case strings.TrimSpace(body) == "":
		return fmt.Errorf("subject %q: a body that gives the reason is missing", first)
	case !strings.HasPrefix(body, "\n"):
		return fmt.Errorf("subject %q: an empty line must follow", first)
	}
	return nil
}
