// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/usage"
)

// errProblems is the result of `status --exit-code` and `analyze` after problems were printed.
var errProblems = errors.New("there are problems")

func newCommand(env environment) *cobra.Command {
	var config cluster.Config
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Show the state and the problems of Millrace in a cluster",
		// The help of a plug-in shows the name that the user types.
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: commandName(env.args[0])},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	kubectlFlags(&config).AddFlags(flags)
	flags.StringVar(&config.Namespace, "install-namespace", installNamespace(env),
		"`namespace` of Millrace, also set by "+variableNamespace)
	flags.DurationVar(&config.Timeout, "request-timeout", 10*time.Second, "time limit of one request to the API server")
	root.AddCommand(
		statusCommand(env, &config),
		vipsCommand(env, &config),
		nodesCommand(env, &config),
		routesCommand(env, &config),
		bgpCommand(env, &config),
		dropsCommand(env, &config),
		topCommand(env, &config),
		duplicatesCommand(env, &config),
		traceCommand(env, &config),
		whyCommand(env, &config),
		uiCommand(env, &config),
		reserveCommand(env, &config),
		drainCommand(env, &config),
		undrainCommand(env, &config),
		migrateCommand(env, &config),
		preflightCommand(env, &config),
		analyzeCommand(env, &config),
		sysdumpCommand(env, &config),
		versionCommand(env, &config),
		manCommand(),
	)
	addSuggestions(root)
	usage.Explain(root)
	root.Version = version
	root.SetVersionTemplate("{{.Version}}\n")
	return root
}

// addSuggestions adds names under which users of kubectl look for commands.
func addSuggestions(root *cobra.Command) {
	names := map[string][]string{
		"status": {"health", "problems", "info", "certificates"}, "vips": {"get", "service", "services", "svc", "addresses", "pools", "ip"},
		"nodes": {"lbnodes", "lbnodereports", "agents"}, "bgp": {"peers", "lbpeers", "sessions", "bfd"},
		"routes": {"ingress", "ingresses", "gateway", "gateways", "httproutes"}, "why": {"history", "events", "explain", "log", "logs"},
		"analyze": {"validate", "lint", "check"}, "top": {"rates", "traffic", "stats"}, "trace": {"tracepath", "flow", "flows"},
		"sysdump": {"dump", "bugtool", "support"}, "ui": {"web", "dashboard"}, "drops": {"packets", "dropped"}, "drain": {"cordon"},
		"undrain": {"uncordon"},
	}
	for _, command := range root.Commands() {
		command.SuggestFor = names[command.Name()]
	}
}

func kubectlFlags(config *cluster.Config) *genericclioptions.ConfigFlags {
	return &genericclioptions.ConfigFlags{
		KubeConfig: &config.Kubeconfig, Context: &config.Context, ClusterName: &config.Cluster, AuthInfoName: &config.User,
		Impersonate: &config.As, ImpersonateUID: &config.AsUID, ImpersonateGroup: &config.AsGroups,
	}
}

// variableNamespace is the environment variable with the default of --install-namespace.
const variableNamespace = "MILLRACE_INSTALL_NAMESPACE"

func installNamespace(env environment) string {
	if env.getenv != nil {
		if namespace := env.getenv(variableNamespace); namespace != "" {
			return namespace
		}
	}
	return "millrace-system"
}

func parseFormat(text string, more ...render.Format) (render.Format, error) {
	format := render.Format(text)
	if text == "" || slices.Contains(formats(), text) || slices.Contains(more, format) {
		return format, nil
	}
	if format.Structured() {
		return format, format.Check()
	}
	allowed := formats()
	for _, one := range more {
		allowed = append(allowed, string(one))
	}
	return "", fmt.Errorf("--output=%s: must be one of %s, jsonpath=TEMPLATE", text, strings.Join(allowed, ", "))
}

// namespaceFlag adds -n; the command fails if the namespace does not exist.
func namespaceFlag(command *cobra.Command, config *cluster.Config, namespace *string, objects string, with completions) {
	command.Flags().StringVarP(namespace, "namespace", "n", "", "only "+objects+" of this `namespace` (default all)")
	registerCompletion(command, "namespace", with)
	checkBefore(command, func(ctx context.Context) error {
		if *namespace == "" {
			return nil
		}
		config.Scope = *namespace
		return cluster.CheckNamespace(ctx, *config, *namespace)
	})
}

// vipFlag adds --vip; the command fails if no VIP has the address.
func vipFlag(command *cobra.Command, config *cluster.Config, vip *netip.Addr, usage string) {
	command.Flags().Var((*addressFlag)(vip), "vip", usage)
	registerCompletion(command, "vip", complete(config, addresses))
	checkBefore(command, func(ctx context.Context) error {
		if !vip.IsValid() {
			return nil
		}
		return cluster.CheckVIP(ctx, *config, *vip)
	})
}

func checkBefore(command *cobra.Command, check func(context.Context) error) {
	previous := command.PreRunE
	command.PreRunE = func(command *cobra.Command, args []string) error {
		if previous != nil {
			if err := previous(command, args); err != nil {
				return err
			}
		}
		return check(command.Context())
	}
}

func nodesFlag(command *cobra.Command, config *cluster.Config, nodes *[]string) {
	command.Flags().StringSliceVar(nodes, "node", nil, "only these `nodes` (default all)")
	registerCompletion(command, "node", complete(config, cluster.Nodes))
}

func jsonFlag(command *cobra.Command, output *string, usage string) {
	command.Flags().StringVarP(output, "output", "o", "", usage)
	registerCompletion(command, "output", fixed(string(render.JSON)))
}

// isInNamespace reports whether a Service is in the namespace; an empty one matches all.
func isInNamespace(service, namespace string) bool {
	return namespace == "" || strings.HasPrefix(service, namespace+"/")
}
