// SPDX-License-Identifier: Apache-2.0

// Command kubernetes combines the lab's control plane, node programs and kubectl. The first argument selects
// the program.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs contains constructors, because only one program may be constructed: that of the API server
// installs the signal handler of the process, and the kubelet panics if it is already installed.
var programs = map[string]func() *cobra.Command{
	"etcd":                    newEtcdCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              kubeproxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		names := slices.Sorted(maps.Keys(programs))
		fmt.Fprintf(os.Stderr, "usage: kubernetes %s [ARGS…]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	name := os.Args[1]
	// kubectl reads os.Args when it is constructed.
	os.Args = append([]string{name}, os.Args[2:]...)
	command := programs[name]()
	if name == "kubectl" {
		if err := cli.RunNoErrOutput(command); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(command))
}
