// SPDX-License-Identifier: Apache-2.0

// Command release builds the files of a release from existing binaries:
//
//	release --version v0.1.0 --programs dist/programs --output dist/release
//
// The same binaries and sources result in the same bytes. make release builds the binaries first.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

type configuration struct {
	// version is a semantic version with a leading "v".
	version string
	// revision is the commit, and created its time.
	revision string
	created  time.Time
	// registry is the prefix of the images' names.
	registry string
	// downloads is the base URL of the command line's archives, for Krew.
	downloads string
	root      string
	// programs is a directory with a subdirectory for each system, such as linux-amd64.
	programs string
	// millrace is the command line for this machine. It generates its manual pages and completions.
	millrace string
	output   string
	push     bool
	// sources are the directories with the licenses of modules.
	sources sources
	// signer is nil if the release is not signed.
	signer *signer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(os.Stdout, os.Getenv).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func newCommand(out io.Writer, getenv func(string) string) *cobra.Command {
	var c configuration
	var epoch int64
	var key string
	command := &cobra.Command{
		Use:           "release --version VERSION",
		Short:         "Make the files of a release",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(command *cobra.Command, _ []string) error {
			c.created = time.Unix(epoch, 0).UTC()
			var err error
			if c.signer, err = loadSigner(key, getenv); err != nil {
				return err
			}
			if c.signer == nil {
				fmt.Fprintf(command.ErrOrStderr(), "release: UNSIGNED: neither --sign-key nor $%s has a key\n", variableKey)
			}
			return build(command.Context(), c, out)
		},
	}
	flags := command.Flags()
	flags.StringVar(&c.version, "version", "", "version, such as v0.1.0")
	flags.StringVar(&c.revision, "revision", "", "commit that is released")
	flags.Int64Var(&epoch, "source-date-epoch", 0, "its time, in seconds since 1970")
	flags.StringVar(&c.registry, "registry", "ghcr.io/millrace-lb", "prefix of the images' names")
	flags.StringVar(&c.downloads, "downloads", "https://github.com/millrace-lb/millrace/releases/download",
		"where the archives of each version will be, for Krew")
	flags.StringVar(&c.root, "root", ".", "checkout")
	flags.StringVar(&c.programs, "programs", "dist/programs", "directory with the programs of each system")
	flags.StringVar(&c.millrace, "millrace", "bin/millrace", "command line for this machine")
	flags.StringVar(&c.output, "output", "dist/release", "directory to write; its previous content is removed")
	flags.BoolVar(&c.push, "push", false, "push the images to the registry, by the credentials of `docker login`")
	flags.StringVar(&key, "sign-key", "", "`file` in PEM with the key that signs, also the content of $"+variableKey)
	cobra.CheckErr(command.MarkFlagRequired("version"))
	return command
}

var versionPattern = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// build writes to a temporary directory first, so that the output is either complete or absent.
func build(ctx context.Context, c configuration, out io.Writer) error {
	if !versionPattern.MatchString(c.version) {
		return fmt.Errorf("version %q: want vMAJOR.MINOR.PATCH, as v0.1.0: make release VERSION=v0.1.0", c.version)
	}
	final := filepath.Clean(c.output)
	c.output = final + ".new"
	if err := os.RemoveAll(c.output); err != nil {
		return fmt.Errorf("empty the output: %w", err)
	}
	if err := os.MkdirAll(c.output, 0o755); err != nil {
		return fmt.Errorf("create the output: %w", err)
	}
	var err error
	if c.sources, err = findSources(ctx); err != nil {
		return err
	}
	built, err := buildImages(c)
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return writeManifests(ctx, c, built) },
		func() error { return writeArchives(ctx, c) },
		func() error { return writeBOMs(c) },
		func() error { return writeVEX(c) },
		func() error { return writeAirGap(c, built) },
	}
	if c.signer != nil {
		steps = append(steps, func() error { return c.signer.writeSignatures(c, built) })
	}
	steps = append(steps, func() error { return writeSums(c.output) })
	if c.signer != nil {
		steps = append(steps, func() error { return c.signer.signSums(c.output) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(final), os.Rename(c.output, final)); err != nil {
		return fmt.Errorf("move the release into its place: %w", err)
	}
	for _, image := range built {
		fmt.Fprintln(out, image.reference)
	}
	if !c.push {
		return nil
	}
	return push(ctx, built)
}

const sumsFile = "SHA256SUMS"

func writeSums(directory string) error {
	var lines strings.Builder
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		sum, err := sumOf(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, path)
		fmt.Fprintf(&lines, "%s  %s\n", sum, filepath.ToSlash(name))
		return err
	})
	if err != nil {
		return fmt.Errorf("compute SHA256SUMS: %w", err)
	}
	return os.WriteFile(filepath.Join(directory, sumsFile), []byte(lines.String()), 0o644)
}
