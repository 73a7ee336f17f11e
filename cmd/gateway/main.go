// SPDX-License-Identifier: Apache-2.0

// Command gateway compiles Ingresses and the objects of Gateway API, and serves the result
// to the proxies that it makes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/millrace-lb/millrace/gateway/controller"
)

// version is set by the linker.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	flags.SetOutput(stderr)
	configuration := register(flags)
	showVersion := flags.Bool("version", false, "print the version and exit")
	config.RegisterFlags(flags)
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	}
	if *showVersion {
		_, err := fmt.Fprintln(stdout, buildVersion())
		return err
	}
	if configuration.ProxyImage == "" {
		return errors.New("no image for proxies: give --proxy-image")
	}

	logger := logr.FromSlogHandler(slog.NewJSONHandler(stderr, nil))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	var err error
	if configuration.REST, err = ctrl.GetConfig(); err != nil {
		return fmt.Errorf("find the API server: %w: run in a cluster or give --kubeconfig", err)
	}
	return controller.Run(ctx, *configuration, logger)
}

// register adds the flags and returns where they are read into.
func register(flags *flag.FlagSet) *controller.Config {
	c := &controller.Config{
		ProxyCPU:         resource.MustParse("100m"),
		ProxyMemory:      resource.MustParse("128Mi"),
		ProxyMemoryLimit: resource.MustParse("1Gi"),
	}
	flags.BoolVar(&c.LeaderElect, "leader-elect", false, "let one of several replicas write, while all serve")
	flags.StringVar(&c.Namespace, "namespace", "millrace-system", "namespace of the controller and of the shared proxies")
	flags.StringVar(&c.ServeAddress, "serve-bind-address", ":15443", "address to serve proxies on")
	flags.StringVar(&c.ControllerAddress, "controller-address", "",
		"host:port at which proxies reach the controller (default: the cluster address of its Service)")
	flags.StringVar(&c.ProxyImage, "proxy-image", "", "image of the proxies")
	flags.StringVar(&c.ProxyPullPolicy, "proxy-image-pull-policy", "", "when that image is pulled (default: as the cluster has it)")
	quantity(flags, &c.ProxyCPU, "proxy-cpu", "CPU that is requested for each proxy")
	quantity(flags, &c.ProxyMemory, "proxy-memory", "memory that is requested for each proxy")
	quantity(flags, &c.ProxyMemoryLimit, "proxy-memory-limit", "memory that a proxy may have")
	flags.StringVar(&c.MetricsAddress, "metrics-bind-address", ":8080", "address to serve metrics on; 0: none")
	flags.BoolVar(&c.MetricsSecure, "metrics-secure", true,
		"serve metrics over TLS, and only to users who may get /metrics; false: plain HTTP for everybody")
	flags.StringVar(&c.MetricsCertDir, "metrics-cert-dir", "",
		"directory with tls.crt and tls.key for metrics (default: a certificate that signs itself)")
	flags.StringVar(&c.ProbeAddress, "health-probe-bind-address", ":8081", "address to serve /healthz and /readyz on; 0: none")
	return c
}

func quantity(flags *flag.FlagSet, into *resource.Quantity, name, usage string) {
	flags.Func(name, fmt.Sprintf("%s (default %s)", usage, into.String()), func(text string) (err error) {
		*into, err = resource.ParseQuantity(text)
		return err
	})
}

// buildVersion is that of the linker or else what the Go command recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
