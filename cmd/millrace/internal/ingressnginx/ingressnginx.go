// SPDX-License-Identifier: Apache-2.0

// Package ingressnginx says of Ingresses what would become of their annotations of ingress-nginx in
// a class of Millrace that carries these out.
package ingressnginx

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
	"github.com/millrace-lb/millrace/gateway/nginx"
)

// Row is an annotation of an Ingress.
type Row struct {
	Namespace, Name string
	// Annotation is without the prefix.
	Annotation string
	// Outcome is what becomes of it, Why the reason where that is not what it says.
	Outcome, Why string
	// IsLost says that the Ingress is not served, or not as the annotation says.
	IsLost bool
}

// Read reads Ingresses as YAML or JSON, as kubectl prints them, and gives the rows of all, sorted.
// Other kinds are passed over.
func Read(in io.Reader) ([]Row, error) {
	var all []migration.Meta
	if err := migration.Read(in, "ingress-nginx", func(object migration.Object) error {
		if object.Kind != "Ingress" {
			return nil
		}
		return migration.Decode(object, &all, nil)
	}); err != nil {
		return nil, err
	}
	var rows []Row
	for i := range all {
		rows = append(rows, rowsOf(&all[i])...)
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Annotation, b.Annotation))
	})
	return rows, nil
}

// rowsOf are those of one Ingress.
func rowsOf(ingress *migration.Meta) []Row {
	_, problems := nginx.Read(ingress.Metadata.Annotations)
	told := map[string]nginx.Problem{}
	for _, problem := range problems {
		if before, known := told[problem.Name]; known {
			problem.Message = before.Message + "; " + problem.Message
			problem.Refuses, problem.Invalid = problem.Refuses || before.Refuses, problem.Invalid || before.Invalid
		}
		told[problem.Name] = problem
	}
	var rows []Row
	for _, name := range slices.Sorted(maps.Keys(ingress.Metadata.Annotations)) {
		short, is := strings.CutPrefix(name, nginx.Prefix)
		if !is {
			continue
		}
		row := Row{
			Namespace: cmp.Or(ingress.Metadata.Namespace, "default"), Name: ingress.Metadata.Name, Annotation: short,
			Outcome: nginx.Ignored.String(),
		}
		of := nginx.Of(short)
		problem, isTold := told[short]
		switch {
		case isTold:
			row.IsLost, row.Why = true, strings.TrimPrefix(problem.Message, "it is not carried out: ")
			switch {
			case problem.Refuses:
				row.Outcome = nginx.Refused.String()
			case problem.Invalid:
				row.Outcome = "cannot be read"
			default:
				row.Outcome = nginx.Missing.String()
			}
		case of.Handling == nginx.Carried:
			row.Outcome = nginx.Carried.String()
		case of.Handling == nginx.Ignored:
			row.Why = of.Note
		default:
			row.Why = "it asks for nothing"
		}
		rows = append(rows, row)
	}
	return rows
}

// Write prints rows as a table.
func Write(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(w, "INGRESS\tANNOTATION\tOUTCOME\tWHY"); err != nil {
		return err
	}
	for _, row := range rows {
		// A tab or a line end of an annotation must not look like another row.
		name := strings.Map(func(c rune) rune {
			if c < ' ' {
				return -1
			}
			return c
		}, row.Annotation)
		if _, err := fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\n", row.Namespace, row.Name, name, row.Outcome, cmp.Or(row.Why, "-")); err != nil {
			return err
		}
	}
	return w.Flush()
}
