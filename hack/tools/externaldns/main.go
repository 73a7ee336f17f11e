// SPDX-License-Identifier: Apache-2.0

// Command externaldns prints the records that ExternalDNS would make of a cluster's Services, Ingresses
// and HTTPRoutes, by its own sources: one for each line, NAME TYPE TARGET…
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/external-dns/source"
	"sigs.k8s.io/external-dns/source/annotations"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file")
	flag.Parse()
	if err := run(context.Background(), *kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "externaldns:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string) error {
	// As its own main does: without it no annotation has a name.
	annotations.SetAnnotationPrefix("external-dns.alpha.kubernetes.io/")
	clients := &source.SingletonClientGenerator{KubeConfig: kubeconfig, RequestTimeout: 30 * time.Second}
	names := []string{"service", "ingress", "gateway-httproute"}
	sources, err := source.ByNames(ctx, clients, names, &source.Config{LabelFilter: labels.Everything()})
	if err != nil {
		return err
	}
	for _, one := range sources {
		endpoints, err := one.Endpoints(ctx)
		if err != nil {
			return err
		}
		for _, endpoint := range endpoints {
			fmt.Println(endpoint.DNSName, endpoint.RecordType, strings.Join(endpoint.Targets, " "))
		}
	}
	return nil
}
