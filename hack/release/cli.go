// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

type system struct{ os, arch string }

var systems = []system{
	{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

func (s system) String() string { return s.os + "-" + s.arch }

func (s system) program() string {
	if s.os == "windows" {
		return "millrace.exe"
	}
	return "millrace"
}

func (s system) archive(version string) string {
	suffix := ".tar.gz"
	if s.os == "windows" {
		suffix = ".zip"
	}
	return "millrace-" + version + "-" + s.String() + suffix
}

// plugins are the file names by which kubectl finds the program and its completion.
var plugins = []string{"kubectl-millrace", "kubectl_complete-millrace"}

// writeArchives writes an archive of the command line for each system, and the manifest for Krew.
func writeArchives(ctx context.Context, c configuration) error {
	common, err := pagesAndCompletions(ctx, c)
	if err != nil {
		return err
	}
	common = append(common, entry{name: "LICENSE", mode: 0o644, path: filepath.Join(c.root, "LICENSE")})
	for _, s := range systems {
		program := filepath.Join(c.programs, s.String(), s.program())
		notices, err := c.sources.notices(program)
		if err != nil {
			return err
		}
		entries := append([]entry{}, common...)
		entries = append(entries, entry{name: s.program(), mode: 0o755, path: program}, entry{name: noticesFile, mode: 0o644, content: notices})
		// Creating symbolic links requires privileges on Windows.
		if s.os != "windows" {
			for _, plugin := range plugins {
				entries = append(entries, entry{name: plugin, mode: 0o777, link: s.program()})
			}
		}
		if err := writeFile(filepath.Join(c.output, s.archive(c.version)), c.created, entries); err != nil {
			return err
		}
	}
	return writeKrew(c)
}

var shells = []string{"bash", "zsh", "fish", "powershell"}

// pagesAndCompletions runs the command line to generate its manual pages and shell completions.
func pagesAndCompletions(ctx context.Context, c configuration) ([]entry, error) {
	pages, err := os.MkdirTemp("", "millrace-man")
	if err != nil {
		return nil, fmt.Errorf("create a directory for manual pages: %w", err)
	}
	defer os.RemoveAll(pages)
	if _, err := c.run(ctx, "man", pages); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(pages)
	if err != nil {
		return nil, fmt.Errorf("read manual pages: %w", err)
	}
	var entries []entry
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(pages, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read manual pages: %w", err)
		}
		entries = append(entries, entry{name: "man/man1/" + file.Name(), mode: 0o644, content: content})
	}
	for _, shell := range shells {
		content, err := c.run(ctx, "completion", shell)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: "completions/millrace." + shell, mode: 0o644, content: content})
	}
	return entries, nil
}

func (c configuration) run(ctx context.Context, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, c.millrace, arguments...)
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(c.created.Unix(), 10))
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", c.millrace, strings.Join(arguments, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out, nil
}

// krew is the manifest of a plug-in (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest).
type krew struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       krewSpec          `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// writeKrew writes the manifest with the checksums of the archives, which must exist already.
func writeKrew(c configuration) error {
	manifest := krew{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   map[string]string{"name": "millrace"},
		Spec: krewSpec{
			Version:          c.version,
			Homepage:         "https://github.com/millrace-lb/millrace",
			ShortDescription: "Show the state and the problems of the load balancer Millrace",
			Description: "Shows which nodes announce each address, traces packets and URLs through the nodes,\n" +
				"prints dropped packets with their reasons, and drains nodes.\n",
		},
	}
	for _, s := range systems {
		sum, err := sumOf(filepath.Join(c.output, s.archive(c.version)))
		if err != nil {
			return fmt.Errorf("compute a sum for Krew: %w", err)
		}
		manifest.Spec.Platforms = append(manifest.Spec.Platforms, krewPlatform{
			Selector: krewSelector{MatchLabels: map[string]string{"os": s.os, "arch": s.arch}},
			URI:      c.downloads + "/" + c.version + "/" + s.archive(c.version), SHA256: sum, Bin: s.program(),
		})
	}
	content, err := yaml.Marshal(manifest)
	if err != nil {
		return fmt.Errorf("write the manifest for Krew: %w", err)
	}
	return os.WriteFile(filepath.Join(c.output, "krew.yaml"), content, 0o644)
}
