// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

const noticesFile = "THIRD_PARTY_NOTICES"

// sources are the directories of the modules and of Go's standard library, which contain license files.
type sources struct {
	modules, std string
	known        map[module.Version][]text
}

func findSources(ctx context.Context) (sources, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOROOT").Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 2 {
		return sources{}, fmt.Errorf("find the sources of modules: go env: %w: %q", err, out)
	}
	return sources{modules: lines[0], std: lines[1], known: map[module.Version][]text{}}, nil
}

// modulesOf returns the modules of a program, the standard library first.
func modulesOf(info *buildinfo.BuildInfo) []module.Version {
	// For builds with other flags or experiments, the version has a suffix: "go1.26.0 X:name".
	version, _, _ := strings.Cut(info.GoVersion, " ")
	modules := []module.Version{{Path: "std", Version: version}}
	for _, of := range info.Deps {
		modules = append(modules, versionOf(of))
	}
	return modules
}

func versionOf(of *debug.Module) module.Version {
	if of.Replace != nil {
		of = of.Replace
	}
	return module.Version{Path: of.Path, Version: of.Version}
}

// text is a license file with the SPDX identifiers of its licenses.
type text struct {
	content string
	ids     []string
}

var legalFile = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|notice|patents)([-.][a-z0-9-]+)?(\.(md|txt))?$`)

// texts returns the license files of a module. It returns an error if no file has a known license.
func (s sources) texts(of module.Version) ([]text, error) {
	if texts, is := s.known[of]; is {
		return texts, nil
	}
	directory := s.std
	if of.Path != "std" {
		path, err := module.EscapePath(of.Path)
		version, wrong := module.EscapeVersion(of.Version)
		if err := errors.Join(err, wrong); err != nil {
			return nil, fmt.Errorf("module %s: %w", of, err)
		}
		directory = filepath.Join(s.modules, filepath.FromSlash(path)+"@"+version)
	}
	files, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("read the license of module %s: %w", of, err)
	}
	var texts []text
	known := false
	for _, file := range files {
		if !file.Type().IsRegular() || !legalFile.MatchString(file.Name()) || strings.HasSuffix(file.Name(), ".go") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(directory, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the license of module %s: %w", of, err)
		}
		ids := licensesOf(content)
		known = known || len(ids) > 0
		texts = append(texts, text{content: strings.TrimSpace(string(content)), ids: ids})
	}
	if !known {
		return nil, fmt.Errorf("module %s: no file of it has a known license", of)
	}
	s.known[of] = texts
	return texts, nil
}

// licensesOf returns the SPDX identifiers of the licenses in a file. It ignores URLs of licenses, because a
// NOTICE file may refer to the licenses of other programs, and Go's patent grant, which has no identifier.
func licensesOf(content []byte) []string {
	ids := map[string]bool{}
	for _, match := range licensecheck.Scan(content).Match {
		if !match.IsURL && match.ID != "GooglePatentsFile" {
			ids[match.ID] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// identifiers returns the SPDX identifiers of a module's licenses.
func (s sources) identifiers(of module.Version) ([]string, error) {
	texts, err := s.texts(of)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, text := range texts {
		ids = append(ids, text.ids...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// notices returns the license files of all modules in programs. A text that several modules contain is
// written once.
func (s sources) notices(paths ...string) ([]byte, error) {
	users := map[string][]string{}
	seen := map[module.Version]bool{}
	for _, path := range paths {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the modules of %s: %w", path, err)
		}
		for _, of := range modulesOf(info) {
			if seen[of] {
				continue
			}
			seen[of] = true
			texts, err := s.texts(of)
			if err != nil {
				return nil, err
			}
			for _, text := range texts {
				users[text.content] = append(users[text.content], of.Path+" "+of.Version)
			}
		}
	}
	for _, modules := range users {
		slices.Sort(modules)
	}
	var out bytes.Buffer
	out.WriteString("Licenses and notices of the Go modules in this software.\n")
	byModule := func(a, b string) int { return strings.Compare(users[a][0]+a, users[b][0]+b) }
	for _, content := range slices.SortedFunc(maps.Keys(users), byModule) {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[content], "\n"), content)
	}
	return out.Bytes(), nil
}
