// SPDX-License-Identifier: Apache-2.0

// Command mkimage writes a container image of static programs without Docker:
//
//	mkimage --output echo.tar --name millrace.test/echo:dev --entrypoint /echo bin/echo:/echo
//
// The result is an archive of an OCI image layout, which containerd can import. The same files
// result in the same bytes.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/hack/mkimage/oci"
)

func main() {
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var output string
	image := oci.Image{Architecture: runtime.GOARCH}
	command := &cobra.Command{
		Use:           "mkimage --output FILE --name NAME --entrypoint PATH FILE:/PATH…",
		Short:         "Write a single-layer OCI image archive from files",
		Args:          cobra.MinimumNArgs(1),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := readFiles(args)
			if err != nil {
				return err
			}
			image.Files = files
			return writeImage(output, image)
		},
	}
	flags := command.Flags()
	flags.StringVar(&output, "output", "", "archive to write")
	flags.StringVar(&image.Name, "name", "", "full image reference, such as millrace.test/echo:dev")
	flags.StringSliceVar(&image.Entrypoint, "entrypoint", nil, "program and leading arguments, comma separated")
	flags.StringVar(&image.User, "user", "", "user to run as: uid, uid:gid, root or nonroot (default root)")
	flags.StringVar(&image.Architecture, "arch", image.Architecture, "architecture, as GOARCH")
	for _, name := range []string{"output", "name", "entrypoint"} {
		cobra.CheckErr(command.MarkFlagRequired(name))
	}
	return command
}

func readFiles(args []string) ([]oci.File, error) {
	files := make([]oci.File, 0, len(args))
	for _, arg := range args {
		cut := strings.LastIndex(arg, ":")
		if cut < 1 {
			return nil, fmt.Errorf("argument %q: want FILE:/PATH", arg)
		}
		content, err := os.ReadFile(arg[:cut])
		if err != nil {
			return nil, fmt.Errorf("read file for the image: %w", err)
		}
		info, err := os.Stat(arg[:cut])
		if err != nil {
			return nil, fmt.Errorf("read mode of a file for the image: %w", err)
		}
		// The umask and the file owner of the build host must not affect the image.
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		files = append(files, oci.File{Path: arg[cut+1:], Mode: mode, Content: content})
	}
	return files, nil
}

// writeImage writes a temporary file first, so that the output is either complete or absent.
func writeImage(output string, image oci.Image) error {
	file, err := os.CreateTemp(filepath.Dir(output), ".mkimage-*")
	if err != nil {
		return fmt.Errorf("create image archive: %w", err)
	}
	defer os.Remove(file.Name())
	if err := oci.Write(file, image); err != nil {
		file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("write image archive %s: %w", output, err)
	}
	if err := os.Chmod(file.Name(), 0o644); err != nil {
		return fmt.Errorf("write image archive %s: %w", output, err)
	}
	if err := os.Rename(file.Name(), output); err != nil {
		return fmt.Errorf("write image archive: %w", err)
	}
	return nil
}
