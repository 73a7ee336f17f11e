// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cilium"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/kubevip"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/metallb"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

// conversion is a subcommand that converts another load balancer's objects to Millrace's.
type conversion struct {
	name, owner string
	get         string
	convert     func(io.Reader) (migration.Result, error)
}

var conversions = []conversion{
	{
		name: "metallb", owner: "MetalLB",
		get: "ipaddresspools,bgppeers,bgpadvertisements,l2advertisements,communities,bfdprofiles -A",
		convert: func(in io.Reader) (migration.Result, error) {
			objects, err := metallb.Read(in)
			if err != nil {
				return migration.Result{}, err
			}
			return metallb.Convert(objects), nil
		},
	},
	{
		name: "cilium", owner: "Cilium",
		get: "ciliumloadbalancerippools,ciliumbgpclusterconfigs,ciliumbgppeerconfigs,ciliumbgpadvertisements," +
			"ciliumbgpnodeconfigoverrides,ciliuml2announcementpolicies",
		convert: func(in io.Reader) (migration.Result, error) {
			objects, err := cilium.Read(in)
			if err != nil {
				return migration.Result{}, err
			}
			return cilium.Convert(objects), nil
		},
	},
	{
		name: "kube-vip", owner: "kube-vip",
		get: "configmap/kubevip daemonset/kube-vip-ds -n kube-system",
		convert: func(in io.Reader) (migration.Result, error) {
			objects, err := kubevip.Read(in)
			if err != nil {
				return migration.Result{}, err
			}
			return kubevip.Convert(objects), nil
		},
	},
}

func migrateCommand(env environment, config *cluster.Config) *cobra.Command {
	migrate := &cobra.Command{
		Use:   "migrate",
		Short: "Migrate a cluster from another load balancer",
		Args:  cobra.NoArgs,
	}
	for i := range conversions {
		migrate.AddCommand(conversions[i].command(env))
	}
	migrate.AddCommand(migrateNodesCommand(env, config), migrateNginxCommand(env, config))
	return migrate
}

func (c *conversion) command(env environment) *cobra.Command {
	var byNode bool
	command := &cobra.Command{
		Use:   c.name + " [FILE…]",
		Short: "Print VIPPools, LBPeers and VIPAdvertisements equivalent to " + c.owner + "'s objects",
		Long: "Read " + c.owner + "'s objects from files or standard input, as printed by kubectl. Settings without\n" +
			"an equivalent and manual steps are printed as comments. The cluster is not changed.",
		Example: "  kubectl get " + c.get + " -o yaml |\n    millrace migrate " + c.name + " > millrace.yaml",
		RunE: func(command *cobra.Command, args []string) error {
			in, err := inputs(command.InOrStdin(), args)
			if err != nil {
				return err
			}
			result, err := c.convert(in)
			if err != nil {
				return err
			}
			if byNode {
				result.ByNode()
			}
			return writeConverted(env.stdout, result)
		},
	}
	command.Flags().BoolVar(&byNode, "by-node", false,
		"restrict LBPeers to nodes with the label "+millracev1beta1.LabelAnnouncer+"="+millracev1beta1.AnnouncerMillrace)
	return command
}

// inputs concatenates files, or standard input for none or "-".
func inputs(stdin io.Reader, files []string) (io.Reader, error) {
	if len(files) == 0 {
		return stdin, nil
	}
	var all []io.Reader
	for _, name := range files {
		var content []byte
		var err error
		if name == "-" {
			content, err = io.ReadAll(stdin)
		} else {
			content, err = os.ReadFile(name)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, bytes.NewReader(content), strings.NewReader("\n---\n"))
	}
	return io.MultiReader(all...), nil
}

func writeConverted(out io.Writer, result migration.Result) error {
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
