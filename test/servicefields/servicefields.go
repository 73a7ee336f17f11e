// SPDX-License-Identifier: Apache-2.0

// Package servicefields holds tests and docs/service.md together: the page names the packages that
// test a field of Service, and each of these has a test named after it.
package servicefields

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// Field is a row of the tables of docs/service.md.
type Field struct {
	// Name is the path of the field without brackets, such as spec.ports.name.
	Name string
	// Packages are those that test it, as paths from the root of the module.
	Packages []string
}

// row is a line of a table: the field, what becomes of it, and the packages of its tests.
var row = regexp.MustCompile("(?m)^\\| `((?:spec|status)\\.[a-zA-Z.]+)` \\|.*\\| ([^|]*) \\|$")

// quoted is a package in the last column.
var quoted = regexp.MustCompile("`([^`]+)`")

// Documented returns the rows of docs/service.md below the root of the module.
func Documented(root string) ([]Field, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "service.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the page of the fields of Service: %w", err)
	}
	var fields []Field
	for _, found := range row.FindAllStringSubmatch(string(page), -1) {
		field := Field{Name: found[1]}
		for _, name := range quoted.FindAllStringSubmatch(found[2], -1) {
			field.Packages = append(field.Packages, name[1])
		}
		fields = append(fields, field)
	}
	return fields, nil
}

// Run runs the tests of a package, each below the name of its field. It fails where the page does
// not name the package for just these fields. root is the way from the package to the root of the
// module.
func Run(t *testing.T, root string, tests map[string]func(*testing.T)) {
	t.Helper()
	fields, err := Documented(root)
	if err != nil {
		t.Fatal(err)
	}
	own, err := ownPath(root)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, field := range fields {
		if !slices.Contains(field.Packages, own) {
			continue
		}
		documented[field.Name] = true
		test, exists := tests[field.Name]
		if !exists {
			t.Errorf("docs/service.md says that %s tests %s, which it does not", own, field.Name)
			continue
		}
		t.Run(field.Name, test)
	}
	for name := range tests {
		if !documented[name] {
			t.Errorf("%s tests %s: name it in the row of docs/service.md", own, name)
		}
	}
}

// ownPath returns the path of the package whose tests run.
func ownPath(root string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the package: %w", err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("finding the root of the module: %w", err)
	}
	path, err := filepath.Rel(top, here)
	if err != nil {
		return "", fmt.Errorf("finding the package: %w", err)
	}
	return filepath.ToSlash(path), nil
}
