// SPDX-License-Identifier: Apache-2.0

// Package upstream runs Kubernetes' end-to-end tests on a running lab.
package upstream

import (
	"context"
	_ "embed"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/millrace-lb/millrace/test/harness"
)

// Options configure Run.
type Options struct {
	Tests, Workload        string
	Kubernetes, Kubeconfig string
	// Folder is the lab's directory, which is visible on all hosts.
	Folder string
	// Reports is the directory for the output and the report.
	Reports     string
	Focus, Skip string
}

var errFailed = errors.New("not every test passed")

// Run installs Millrace, runs the tests on the client and prints their results.
func Run(ctx context.Context, cluster *harness.Cluster, options Options, out io.Writer) error {
	if err := os.MkdirAll(options.Reports, 0o755); err != nil {
		return fmt.Errorf("create the directory of reports: %w", err)
	}
	if err := loadImages(ctx, cluster, options); err != nil {
		return err
	}
	fmt.Fprintln(out, "installing Millrace …")
	if err := cluster.Install(ctx); err != nil {
		return err
	}
	for _, manifest := range []string{harness.Network, dns} {
		if err := cluster.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	if err := cluster.RolledOut(ctx, "kube-system", "deployment/dns"); err != nil {
		return err
	}
	if err := moveClient(ctx, cluster); err != nil {
		return err
	}
	kubectl, err := writeKubectl(options)
	if err != nil {
		return err
	}
	junit := filepath.Join(options.Reports, "junit.xml")
	if err := os.RemoveAll(junit); err != nil {
		return fmt.Errorf("remove the report of an earlier run: %w", err)
	}
	log, err := os.Create(filepath.Join(options.Reports, "output.txt"))
	if err != nil {
		return fmt.Errorf("keep the tests' output: %w", err)
	}
	defer log.Close()
	fmt.Fprintf(out, "running the tests; their output goes to %s\n", log.Name())
	runErr := cluster.Stream(ctx, log, "exec", "client", "--", options.Tests,
		"--kubeconfig="+options.Kubeconfig, "--kubectl-path="+kubectl, "--provider=skeleton", "--num-nodes=3",
		"--ginkgo.focus="+options.Focus, "--ginkgo.skip="+options.Skip, "--ginkgo.no-color", "--ginkgo.v",
		"--ginkgo.timeout=3h", "--ginkgo.junit-report="+junit, "--test.timeout=0", "--report-complete-ginkgo=false")
	return errors.Join(summarize(junit, out), runErr)
}

// dns is a DNS of the cluster: the tests' pods use names of Services.
//
//go:embed manifests/dns.yaml
var dns string

// outsideAddress is the client's address during the tests, which treat addresses with the same 16-bit
// prefix as a node as inside the cluster. No VIP has it.
const outsideAddress = "203.0.113.240"

func moveClient(ctx context.Context, cluster *harness.Cluster) error {
	script := "ip -4 address replace " + outsideAddress + "/32 dev lo && " +
		"ip -4 route replace $(ip -4 route show default) src " + outsideAddress
	if _, err := cluster.Exec(ctx, "client", "sh", "-c", script); err != nil {
		return err
	}
	_, err := cluster.Exec(ctx, "router1", "ip", "route", "replace", outsideAddress, "via", harness.ClientIPv4.String())
	return err
}

func writeKubectl(options Options) (string, error) {
	path := filepath.Join(options.Folder, "kubectl.sh")
	script := fmt.Sprintf("#!/bin/sh\nKUBECACHEDIR=%s KUBERC=off exec %s kubectl \"$@\"\n",
		filepath.Join(options.Folder, "kubectl"), options.Kubernetes)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return "", fmt.Errorf("write the tests' kubectl: %w", err)
	}
	return path, nil
}

type report struct {
	Tests []struct {
		Name    string  `xml:"name,attr"`
		Status  string  `xml:"status,attr"`
		Seconds float64 `xml:"time,attr"`
		Failure string  `xml:"failure"`
	} `xml:"testsuite>testcase"`
}

// summarize prints the selected tests of a report.
func summarize(file string, out io.Writer) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the tests' report: %w", err)
	}
	var read report
	if err := xml.Unmarshal(content, &read); err != nil {
		return fmt.Errorf("read the tests' report: %w", err)
	}
	passed, all := 0, 0
	for _, test := range read.Tests {
		// Other names are setup steps; skipped tests without a duration were not selected.
		if !strings.HasPrefix(test.Name, "[It]") || test.Status == "skipped" && test.Seconds == 0 {
			continue
		}
		all++
		if test.Status == "passed" {
			passed++
		}
		fmt.Fprintf(out, "%-8s %6.0f s  %s\n", test.Status, test.Seconds, strings.TrimPrefix(test.Name, "[It] "))
	}
	fmt.Fprintf(out, "%d of %d passed\n", passed, all)
	if passed < all || all == 0 {
		return errFailed
	}
	return nil
}

func images(ctx context.Context, tests string) ([]string, error) {
	raw, err := exec.CommandContext(ctx, tests, "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("list the images of the tests: %w", err)
	}
	var found []string
	for _, name := range strings.Fields(string(raw)) {
		base := name[strings.LastIndexByte(name, '/')+1:]
		if strings.HasPrefix(base, "agnhost:") || strings.HasPrefix(base, "busybox:") {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("the tests name no image of agnhost")
	}
	return found, nil
}
