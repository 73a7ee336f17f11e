// SPDX-License-Identifier: Apache-2.0

// Command typecheck type-checks cmd/millrace and its dependencies for all systems without generating code.
// This takes seconds instead of the minutes of hack/build-cli.sh.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/tools/go/packages"
)

const command = "./cmd/millrace"

// withoutBody matches errors that go/types reports because function bodies were removed.
var withoutBody = regexp.MustCompile(`imported( as .*)? and not used|missing function body`)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the sources: %w", err)
	}
	var problems []error
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, architecture := range []string{"amd64", "arm64"} {
			if err := check(root, system, architecture); err != nil {
				problems = append(problems, fmt.Errorf("%s does not compile for %s/%s: %w", command, system, architecture, err))
			}
		}
	}
	return errors.Join(problems...)
}

func check(root, system, architecture string) error {
	own := root + string(filepath.Separator)
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesSizes,
		Env: append(os.Environ(), "GOOS="+system, "GOARCH="+architecture, "CGO_ENABLED=0"),
		// Function bodies of other modules are not checked.
		ParseFile: func(files *token.FileSet, name string, source []byte) (*ast.File, error) {
			file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
			if err != nil || strings.HasPrefix(name, own) {
				return file, err
			}
			for _, declaration := range file.Decls {
				if function, ok := declaration.(*ast.FuncDecl); ok && function.Name.Name != "init" {
					function.Body = nil
				}
			}
			return file, nil
		},
	}, command)
	if err != nil {
		return err
	}
	var problems []error
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, problem := range p.Errors {
			if !withoutBody.MatchString(problem.Msg) || len(p.GoFiles) == 0 || strings.HasPrefix(p.GoFiles[0], own) {
				problems = append(problems, problem)
			}
		}
	})
	return errors.Join(problems...)
}
