// SPDX-License-Identifier: Apache-2.0

// Package servicefields keeps tests and docs/service.md consistent: the page names the packages that test a
// field of Service, and each has a test with the field's name.
package servicefields

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// Field is a row of the tables in docs/service.md.
type Field struct {
	// Name is the field's path without brackets, such as spec.ports.name.
	Name string
	// Packages are the paths of the testing packages from the module's root.
	Packages []string
}

// row matches a table line: the field, its handling, and the packages of its tests.
var row = regexp.MustCompile("(?m)^\\| `((?:spec|status)\\.[a-zA-Z.]+)` \\|.*\\| ([^|]*) \\|$")

var quoted = regexp.MustCompile("`([^`]+)`")

// Documented returns the rows of docs/service.md below the module's root.
func Documented(root string) ([]Field, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "service.md"))
	if err != nil {
		return nil, fmt.Errorf("read the page of the fields of Service: %w", err)
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

// Run runs a package's tests as subtests named after fields. It fails unless the page names the package for
// exactly these fields. root is the relative path to the module's root.
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

func ownPath(root string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the package: %w", err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("find the root of the module: %w", err)
	}
	path, err := filepath.Rel(top, here)
	if err != nil {
		return "", fmt.Errorf("find the package: %w", err)
	}
	return filepath.ToSlash(path), nil
}
