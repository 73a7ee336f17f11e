// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/analysis"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/manifests"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
)

type analyze struct {
	env       environment
	files     []string
	namespace string
	output    string
	options   analysis.Options
}

func analyzeCommand(env environment, config *cluster.Config) *cobra.Command {
	a := &analyze{env: env}
	command := &cobra.Command{
		Use:   "analyze -f FILE|DIRECTORY|-",
		Short: "Validate manifests offline and show the resulting plan",
		Long: "Validate manifests and show the VIPs that their Services would get. No cluster is needed.\n\n" +
			"Objects are validated against the CRDs and each other, and planned like the operator and the gateway do:\n" +
			"specify all objects of a cluster together. Of two conflicting objects, the first by name counts as the older\n" +
			"one. Certificates of routes are assumed to be valid. The exit code is 2 if there are problems, otherwise 0.",
		Example: "  millrace analyze -f deploy/\n  kustomize build . | millrace analyze -f -\n  helm template . | millrace analyze -f - -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			a.options.Namespace = config.Namespace
			return a.run()
		},
	}
	flags := command.Flags()
	flags.StringArrayVarP(&a.files, "filename", "f", nil, "manifests: a `file`, a directory (recursively), or - for standard input")
	flags.StringVarP(&a.namespace, "namespace", "n", "default", "`namespace` of objects without one")
	flags.StringVar(&a.options.Class.Name, "load-balancer-class", millracev1beta1.Class, "load balancer `class` that is served, like the operator's flag")
	flags.BoolVar(&a.options.Class.IsDefault, "default-class", false, "also serve Services without a class, like the operator's flag")
	flags.BoolVar(&a.options.AssumeSecrets, "assume-secrets", false, "assume valid Secrets with the passwords of LBPeers, even if the manifests lack them")
	flags.StringVarP(&a.output, "output", "o", "", "output `format`: wide, json or yaml")
	registerCompletion(command, "output", fixed(formats()...))
	return command
}

func (a *analyze) run() error {
	format, err := parseFormat(a.output)
	if err != nil {
		return err
	}
	if len(a.files) == 0 {
		return errors.New("specify manifests with -f FILE, -f DIRECTORY, or -f - for standard input")
	}
	if err := desired.ParseClassName(a.options.Class.Name); err != nil {
		return err
	}
	return printAnalysis(a.env, a.files, a.namespace, format, func(objects *manifests.Objects) (*analysis.View, error) {
		return analysis.Analyze(objects, a.options)
	})
}

// printAnalysis returns errProblems if there are problems. namespace applies to objects without one.
func printAnalysis(
	env environment, files []string, namespace string, format render.Format, analyze func(*manifests.Objects) (*analysis.View, error),
) error {
	reader, err := manifests.NewReader(namespace)
	if err != nil {
		return err
	}
	for _, file := range files {
		if file == "-" {
			err = reader.Read("standard input", env.stdin)
		} else {
			err = reader.ReadPath(file)
		}
		if err != nil {
			return err
		}
	}
	view, err := analyze(reader.Objects())
	if err != nil {
		return err
	}
	if err := render.Analysis(env.stdout, view, render.Options{Format: format, Width: env.width, Colour: env.colour}); err != nil {
		return err
	}
	if len(view.Problems) > 0 {
		return errProblems
	}
	return nil
}
