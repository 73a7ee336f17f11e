// SPDX-License-Identifier: Apache-2.0

// Command externaldns prints the DNS records that ExternalDNS computes for a cluster, one per line: NAME TYPE
// TARGET…
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
	// ExternalDNS's main package sets this prefix; without it annotations have no names.
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
