// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/coexistence"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// preflightLimit is the time limit of one node.
const preflightLimit = 30 * time.Second

func preflightCommand(env environment, config *cluster.Config) *cobra.Command {
	var output string
	var trial trialOptions
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether Millrace can work on the nodes",
		Long: "Check whether Millrace can work on the nodes, before or after its installation.\n" +
			"Before the installation, the command creates a DaemonSet for the checks in a temporary namespace. Afterwards\n" +
			"the agents run the checks. The exit code is 2 if a check fails.",
		Example: "  millrace preflight --image registry.example.com/millrace/lbagent:v0.1.0",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			asJSON, err := parseJSON(output)
			if err != nil {
				return err
			}
			others, err := cluster.ReadCoexistence(command.Context(), *config)
			if err != nil {
				return err
			}
			nodes, err := preflight(command.Context(), env, *config, trial)
			if err != nil {
				return err
			}
			all := render.Preflight{Cluster: coexistence.Find(others), Nodes: nodes}
			if err := all.Write(env.stdout, render.Options{Format: jsonFormat(asJSON), Width: env.width}); err != nil {
				return err
			}
			if all.Faults() > 0 {
				return errProblems
			}
			return nil
		},
	}
	command.Flags().StringVar(&trial.image, "image", "ghcr.io/millrace-lb/lbagent:"+version, "`image` of the agent, for checks before the installation")
	command.Flags().StringSliceVar(&trial.pullSecrets, "image-pull-secret", nil,
		"`Secrets` for pulling the image, as [NAMESPACE/]NAME, by default in the namespace of Millrace")
	command.Flags().StringSliceVar(&trial.uplinks, "uplinks", nil, "names or globs of the uplinks' `interfaces`, like the agents' flag")
	jsonFlag(command, &output, "output `format`: json")
	return command
}

type trialOptions struct {
	image                string
	pullSecrets, uplinks []string
}

// trialImage returns the image and its pull Secrets, by default in the given namespace.
func (o trialOptions) trialImage(namespace string) cluster.TrialImage {
	image := cluster.TrialImage{Name: o.image}
	for _, text := range o.pullSecrets {
		name := types.NamespacedName{Namespace: namespace, Name: text}
		if of, rest, found := strings.Cut(text, "/"); found {
			name = types.NamespacedName{Namespace: of, Name: rest}
		}
		image.PullSecrets = append(image.PullSecrets, name)
	}
	return image
}

// preflight uses the agents, or a trial DaemonSet if Millrace is not installed.
func preflight(ctx context.Context, env environment, config cluster.Config, options trialOptions) (_ []consoleapi.Preflight, err error) {
	request := []string{"preflight"}
	for _, uplink := range options.uplinks {
		request = append(request, "--uplinks="+uplink)
	}
	agents, err := cluster.FindAgents(ctx, config)
	if err == nil {
		return runPreflight(ctx, agents, agents.Nodes(), append(request, "--installed"), nil), nil
	}
	if !errors.Is(err, cluster.ErrNotInstalled) {
		return nil, err
	}
	fmt.Fprintf(env.stderr, "millrace: no agent runs in namespace %s: a DaemonSet of %s checks the nodes\n", config.Namespace, options.image)
	trial, err := cluster.StartTrial(ctx, config, options.trialImage(config.Namespace))
	defer func() {
		// Clean up even if the user interrupted the command.
		cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, trial.Remove(cleaning))
	}()
	if err != nil {
		return nil, err
	}
	for _, node := range trial.Nodes() {
		for _, address := range trial.Addresses[node] {
			request = append(request, "--node="+node+"="+address)
		}
	}
	return runPreflight(ctx, trial, trial.Nodes(), request, trial.Missing), ctx.Err()
}

const checkPod = "pod"

// runPreflight adds a failed check for nodes in missing, or without answer.
func runPreflight(ctx context.Context, runner console.Runner, nodes, request []string, missing map[string]string) (results []consoleapi.Preflight) {
	batch := console.Batch{Runner: runner, Limit: preflightLimit, Stop: cluster.ErrForbidden}
	failed := maps.Clone(missing)
	if failed == nil {
		failed = map[string]string{}
	}
	for node, response := range batch.Query(ctx, nodes, request) {
		switch {
		case response.Err != nil:
			failed[node] = response.Err.Error()
		case response.Line.Preflight == nil:
			failed[node] = "its agent does not support preflight: it has an older version"
		default:
			response.Line.Preflight.Node = node
			results = append(results, *response.Line.Preflight)
		}
	}
	for node, why := range failed {
		results = append(results, consoleapi.Preflight{Node: node, Findings: []consoleapi.Finding{{
			Check: checkPod, Level: consoleapi.LevelFault, Message: "no result of the node: " + strings.TrimSpace(why),
		}}})
	}
	slices.SortFunc(results, func(a, b consoleapi.Preflight) int { return report.CompareNames(a.Node, b.Node) })
	return results
}
