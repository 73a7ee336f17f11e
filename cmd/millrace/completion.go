// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
)

// completionTime limits a completion's requests to the API server.
const completionTime = 3 * time.Second

type completions = cobra.CompletionFunc

func complete(config *cluster.Config, list func(context.Context, cluster.Config) ([]string, error)) completions {
	return func(command *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(command.Context(), completionTime)
		defer cancel()
		found, err := list(ctx, *config)
		if err != nil {
			// Shells show no messages; the command itself reports the error.
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveError
		}
		found = slices.DeleteFunc(found, func(word string) bool { return !strings.HasPrefix(word, toComplete) })
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// fixed returns completions that need no cluster.
func fixed(words ...string) completions {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// registerCompletion panics if the flag does not exist.
func registerCompletion(command *cobra.Command, flag string, with completions) {
	if err := command.RegisterFlagCompletionFunc(flag, with); err != nil {
		panic(fmt.Sprintf("complete --%s of %s: %v", flag, command.Name(), err))
	}
}

func formats() []string {
	return []string{string(render.Wide), string(render.JSON), string(render.YAML)}
}

// argument completes only the argument at index, counted from 0.
func argument(index int, with completions) completions {
	return func(command *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) != index {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return with(command, args, toComplete)
	}
}

func addresses(ctx context.Context, config cluster.Config) ([]string, error) {
	vips, err := cluster.VIPs(ctx, config)
	var words []string
	for _, vip := range vips {
		var services []string
		for _, claim := range vip.Spec.Claims {
			services = append(services, claim.Namespace+"/"+claim.Name)
		}
		words = append(words, cobra.CompletionWithDesc(vip.Spec.Address, strings.Join(services, ",")))
	}
	return words, err
}

// addressesAndServices returns VIPs and their Services, with a namespace only its Services by name.
func addressesAndServices(namespace *string) func(context.Context, cluster.Config) ([]string, error) {
	return func(ctx context.Context, config cluster.Config) ([]string, error) {
		words, err := addresses(ctx, config)
		if err != nil {
			return nil, err
		}
		services, err := serviceNames(ctx, config, *namespace)
		return append(words, services...), err
	}
}

func serviceNames(ctx context.Context, config cluster.Config, namespace string) ([]string, error) {
	var words []string
	err := forEachClaim(ctx, config, func(_ *millracev1beta1.VIP, claim millracev1beta1.VIPClaim) {
		switch namespace {
		case "":
			words = append(words, claim.Namespace+"/"+claim.Name)
		case claim.Namespace:
			words = append(words, claim.Name)
		}
	})
	return words, err
}

func namespaces(ctx context.Context, config cluster.Config) ([]string, error) {
	var words []string
	err := forEachClaim(ctx, config, func(_ *millracev1beta1.VIP, claim millracev1beta1.VIPClaim) {
		words = append(words, claim.Namespace)
	})
	return words, err
}

// sockets returns the VIPs with the ports of their Services, such as 203.0.113.1:80.
func sockets(ctx context.Context, config cluster.Config) ([]string, error) {
	services, err := cluster.Services(ctx, config)
	var words []string
	for _, service := range services {
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			address, err := netip.ParseAddr(ingress.IP)
			if err != nil {
				continue
			}
			for _, port := range service.Spec.Ports {
				socket := netip.AddrPortFrom(address, uint16(port.Port))
				words = append(words, cobra.CompletionWithDesc(socket.String(), service.Namespace+"/"+service.Name))
			}
		}
	}
	return words, err
}

func forEachClaim(ctx context.Context, config cluster.Config, each func(*millracev1beta1.VIP, millracev1beta1.VIPClaim)) error {
	vips, err := cluster.VIPs(ctx, config)
	for i := range vips {
		for _, claim := range vips[i].Spec.Claims {
			each(&vips[i], claim)
		}
	}
	return err
}
