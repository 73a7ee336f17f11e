// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/metallb"
)

func migrateCommand(env environment, config *cluster.Config) *cobra.Command {
	var byNode bool
	migrate := &cobra.Command{
		Use:   "migrate",
		Short: "Move a cluster from another load balancer",
		Args:  cobra.NoArgs,
	}
	convert := &cobra.Command{
		Use:   "metallb [FILE]",
		Short: "Print VIPPools, LBPeers and VIPAdvertisements that mean the same as MetalLB's objects",
		Long: "Read MetalLB's objects from a file, or from standard input, as kubectl prints them. What has no\n" +
			"counterpart, and what is left to do, is in comments in front. Nothing is changed.",
		Example: "  kubectl get ipaddresspools,bgppeers,bgpadvertisements,l2advertisements,communities,bfdprofiles -A -o yaml |\n" +
			"    millrace migrate metallb > millrace.yaml",
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			in := command.InOrStdin()
			if len(args) == 1 && args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer file.Close()
				in = file
			}
			objects, err := metallb.Read(in)
			if err != nil {
				return err
			}
			result := metallb.Convert(objects)
			if byNode {
				result.ByNode()
			}
			return writeConverted(env.stdout, result)
		},
	}
	convert.Flags().BoolVar(&byNode, "by-node", false,
		"have LBPeers select those nodes alone that `millrace migrate nodes` has moved")
	migrate.AddCommand(convert, migrateNodesCommand(env, config))
	return migrate
}

// writeConverted writes notes as comments, then the objects.
func writeConverted(out io.Writer, result metallb.Result) error {
	for _, note := range result.Notes {
		if _, err := fmt.Fprintf(out, "# %s\n", note); err != nil {
			return err
		}
	}
	var objects []any
	for _, pool := range result.Pools {
		objects = append(objects, pool)
	}
	for _, peer := range result.Peers {
		objects = append(objects, peer)
	}
	for _, advertisement := range result.Advertisements {
		objects = append(objects, advertisement)
	}
	for _, object := range objects {
		text, err := manifest(object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}

// manifest is an object as a user would write it: without a status.
func manifest(object any) ([]byte, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	return yaml.Marshal(fields)
}
