// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
)

func reserveCommand(env environment, config *cluster.Config) *cobra.Command {
	var family, service string
	command := &cobra.Command{
		Use:   "reserve POOL",
		Short: "Reserve a free address of a VIPPool and print it",
		Long: "Create a VIP with the next free address of the pool. It exists until you delete it.\n" +
			"A Service gets it by requesting the address by annotation, or by the flag --for.",
		Example:           "  millrace reserve public\n  millrace reserve public --family IPv6 --for shop/web",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: argument(0, complete(config, cluster.Pools)),
		RunE: func(command *cobra.Command, args []string) error {
			if family != "" && family != "IPv4" && family != "IPv6" {
				return fmt.Errorf("--family=%s: must be IPv4 or IPv6", family)
			}
			owner, err := parseService(service)
			if err != nil {
				return err
			}
			address, err := cluster.Reserve(command.Context(), *config, args[0], family, owner)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(env.stdout, address)
			return err
		},
	}
	command.Flags().StringVar(&family, "family", "", "IPv4 or IPv6 (default: the first family of the pool)")
	command.Flags().StringVar(&service, "for", "", "`NAMESPACE/NAME` of the Service that gets it (default: any Service that requests it)")
	registerCompletion(command, "family", fixed("IPv4", "IPv6"))
	return command
}

// parseService parses NAMESPACE/NAME; empty text returns the zero name.
func parseService(text string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if text != "" && (!found || namespace == "" || name == "" || strings.Contains(name, "/")) {
		return types.NamespacedName{}, fmt.Errorf("--for=%s: must be NAMESPACE/NAME, such as shop/web", text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}
