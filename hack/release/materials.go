// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOMs writes SBOMs from the build information of the binaries.
func writeBOMs(c configuration) error {
	if err := os.MkdirAll(filepath.Join(c.output, "sbom"), 0o755); err != nil {
		return fmt.Errorf("create the directory of SBOMs: %w", err)
	}
	for _, s := range systems {
		if err := writeBOM(c, s, s.program(), "millrace"); err != nil {
			return err
		}
	}
	for _, architecture := range architectures {
		for _, image := range images {
			for _, file := range image.files() {
				if err := writeBOM(c, system{"linux", architecture}, file, file); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func writeBOM(c configuration, s system, file, name string) error {
	path := filepath.Join(c.programs, s.String(), file)
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w", path, err)
	}
	sum, err := sumOf(path)
	if err != nil {
		return err
	}
	bom, err := newBOM(c, info, name, sum)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	if err := encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("write the SBOM of %s: %w", path, err)
	}
	return os.WriteFile(filepath.Join(c.output, "sbom", name+"-"+s.String()+".cdx.json"), out.Bytes(), 0o644)
}

func newBOM(c configuration, info *buildinfo.BuildInfo, name, sum string) (*cyclonedx.BOM, error) {
	main := purl(info.Main.Path, c.version) + "#cmd/" + name
	result := cyclonedx.NewBOM()
	result.Metadata = &cyclonedx.Metadata{
		Timestamp: c.created.Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: main, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: c.version, PackageURL: main,
			Hashes:   &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sum}},
			Licenses: licensed("Apache-2.0"),
		},
	}
	var components []cyclonedx.Component
	for _, of := range modulesOf(info) {
		ids, err := c.sources.identifiers(of)
		if err != nil {
			return nil, err
		}
		reference := purl(of.Path, of.Version)
		components = append(components, cyclonedx.Component{
			BOMRef: reference, Type: cyclonedx.ComponentTypeLibrary, Name: of.Path, Version: of.Version, PackageURL: reference,
			Licenses: licensed(ids...),
		})
	}
	result.Components = &components
	var needs []string
	for _, component := range components {
		needs = append(needs, component.BOMRef)
	}
	result.Dependencies = &[]cyclonedx.Dependency{{Ref: main, Dependencies: &needs}}
	return result, nil
}

func licensed(ids ...string) *cyclonedx.Licenses {
	var licenses cyclonedx.Licenses
	for _, id := range ids {
		licenses = append(licenses, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &licenses
}

// purl returns the package URL of a Go module (https://github.com/package-url/purl-spec).
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
