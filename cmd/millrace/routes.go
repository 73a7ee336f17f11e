// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
)

func routesCommand(env environment, config *cluster.Config) *cobra.Command {
	var output string
	var choice routing.Choice
	command := &cobra.Command{
		Use:   "routes [HOST]",
		Short: "Show routes of Ingresses and Gateways with their backends and problems",
		Long: "Show the listeners, rules and backends of Ingresses and Gateways, and rejected objects with the reasons.\n" +
			"With a HOST, show the rules for requests to this host.\n\n" +
			"Objects are compiled like the gateway does. Secrets are not read: certificates are assumed to be valid\n" +
			"unless the gateway has reported an error.",
		Example: "  millrace routes\n  millrace routes shop.example.com\n  millrace routes -n shop -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			format, err := parseFormat(output)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				choice.Host = args[0]
			}
			in, err := cluster.ReadRouting(command.Context(), *config)
			if err != nil {
				return err
			}
			view, err := routing.Compile(in).View(choice)
			if err != nil {
				return err
			}
			return render.Routes(env.stdout, view, render.Options{Format: format, Width: env.width, Colour: env.colour})
		},
		ValidArgsFunction: argument(0, complete(config, hosts)),
	}
	flags := command.Flags()
	flags.StringVarP(&output, "output", "o", "", "output `format`: wide, json or yaml")
	namespaceFlag(command, config, &choice.Namespace, "routes", complete(config, routeNamespaces))
	registerCompletion(command, "output", fixed(formats()...))
	return command
}

func hosts(ctx context.Context, config cluster.Config) ([]string, error) {
	return ruleNames(ctx, config, func(rule *routing.Rule) string { return rule.Hostname })
}

func routeNamespaces(ctx context.Context, config cluster.Config) ([]string, error) {
	return ruleNames(ctx, config, func(rule *routing.Rule) string { return rule.Route.Namespace })
}

func ruleNames(ctx context.Context, config cluster.Config, of func(*routing.Rule) string) ([]string, error) {
	in, err := cluster.ReadRouting(ctx, config)
	if err != nil {
		return nil, err
	}
	view, err := routing.Compile(in).View(routing.Choice{})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var words []string
	for i := range view.Owners {
		for j := range view.Owners[i].Rules {
			if word := of(&view.Owners[i].Rules[j]); word != "" && word != "*" {
				words = append(words, word)
			}
		}
	}
	return words, nil
}
