// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Target is a set of programs built from one Go module.
type Target struct {
	Name     string
	Dir      string
	Packages []string
	Test     bool
	// CGO is true if a C compiler is required. All programs are static.
	CGO     bool
	Tags    []string
	LDFlags []string
	// Prepare is a shell script in Dir, run first with two directories as arguments. Files in the second
	// are installed with the programs. If it creates a module in the first, the programs are built there.
	Prepare string
}

// Targets returns the third-party programs of the lab.
func Targets() []Target {
	const kubernetesVersion = "k8s.io/component-base/version."
	return []Target{
		{
			Name:     "kubernetes",
			Dir:      "hack/lab/kubernetes",
			Packages: []string{"."},
			LDFlags: []string{
				"-X " + kubernetesVersion + "gitVersion=v1.37.2",
				"-X " + kubernetesVersion + "gitMajor=1",
				"-X " + kubernetesVersion + "gitMinor=37",
				"-X " + kubernetesVersion + "gitTreeState=archive",
			},
		},
		{
			Name: "containerd",
			Dir:  "hack/lab/containerd",
			Packages: []string{
				"github.com/containerd/containerd/v2/cmd/containerd",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
				"github.com/containerd/containerd/v2/cmd/ctr",
			},
			Tags:    []string{"no_btrfs", "no_zfs", "no_devmapper", "no_blockfile"},
			LDFlags: []string{"-X github.com/containerd/containerd/v2/version.Version=v2.3.7"},
		},
		{
			// Unprivileged sandboxes require seccomp, which needs libseccomp in C.
			Name:     "runc",
			Dir:      "hack/lab/runc",
			Packages: []string{"github.com/opencontainers/runc"},
			CGO:      true,
			Tags:     []string{"netgo", "osusergo", "seccomp"},
			LDFlags:  []string{"-extldflags -static", "-X main.version=1.4.3"},
		},
		{
			Name: "cni",
			Dir:  "hack/lab/cni",
			Packages: []string{
				"github.com/containernetworking/plugins/plugins/ipam/host-local",
				"github.com/containernetworking/plugins/plugins/main/loopback",
				"github.com/containernetworking/plugins/plugins/main/ptp",
			},
		},
		{Name: "echo", Dir: "test/echo", Packages: []string{"."}},
	}
}

// CNI returns the programs of an optional CNI.
func CNI(name string) []Target {
	const plugins = "github.com/containernetworking/plugins/plugins/"
	switch name {
	case "flannel":
		return []Target{{
			Name: name,
			Dir:  "hack/lab/flannel",
			Packages: []string{
				"github.com/flannel-io/flannel", plugins + "main/bridge", plugins + "meta/portmap",
			},
			// Its UDP backend is in C and required for compilation.
			CGO:     true,
			Tags:    []string{"netgo", "osusergo"},
			LDFlags: []string{"-linkmode external", "-extldflags -static"},
		}}
	case "calico":
		const calico = "github.com/projectcalico/calico/"
		return []Target{{
			Name: name,
			Dir:  "hack/lab/calico",
			// The program with the plugins' names, and the daemons.
			Packages: []string{calico + "cni-plugin/cmd/calico", calico + "node/cmd/calico-node"},
			// Felix exits without libbpf if a BPF file system is mounted.
			CGO:     true,
			Prepare: "prepare.sh",
		}}
	case "cilium":
		const cilium = "github.com/cilium/cilium/"
		return []Target{{
			Name:     name,
			Dir:      "hack/lab/cilium",
			Packages: []string{cilium + "daemon", cilium + "plugins/cilium-cni"},
			Tags:     []string{"osusergo"},
			LDFlags:  []string{"-X " + cilium + "pkg/version.ciliumVersion=1.18.4"},
			Prepare:  "prepare.sh",
		}}
	}
	return nil
}

// KubernetesTests returns Kubernetes' end-to-end tests of the network and their workload.
func KubernetesTests() (tests, workload Target) {
	const directory = "hack/lab/e2e"
	tests = Target{Name: "kubernetes-e2e", Dir: directory, Packages: []string{"."}, Test: true}
	workload = Target{Name: "agnhost", Dir: directory, Packages: []string{"k8s.io/kubernetes/test/images/agnhost"}}
	return tests, workload
}

func (t Target) arguments(output string) []string {
	args := []string{"build", "-v"}
	if t.Test {
		args = []string{"test", "-c", "-vet=off"}
	}
	args = append(args, "-trimpath", "-o", output+"/")
	if len(t.Tags) > 0 {
		args = append(args, "-tags", strings.Join(t.Tags, ","))
	}
	args = append(args, "-ldflags", strings.Join(append([]string{"-s", "-w"}, t.LDFlags...), " "))
	return append(args, t.Packages...)
}

func (t Target) environment() []string {
	cgo := "CGO_ENABLED=0"
	if t.CGO {
		cgo = "CGO_ENABLED=1"
	}
	return []string{cgo, "GOFLAGS=-buildvcs=false -mod=readonly -gcflags=all=-dwarf=false", "GOWORK=off"}
}

// Key is a hash of the sources, module files, flags and Go version. root is the project's directory.
func (t Target) Key(root fs.FS, goVersion string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, goVersion, runtime.GOOS, runtime.GOARCH, t.arguments(""), t.environment())
	var files []string
	err := fs.WalkDir(root, t.Dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && (isSource(name) || t.isOwn(name)) {
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read sources of %s: %w", t.Name, err)
	}
	slices.Sort(files)
	for _, name := range files {
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return "", fmt.Errorf("read sources of %s: %w", t.Name, err)
		}
		fmt.Fprintln(hash, name, len(content))
		if _, err := hash.Write(content); err != nil {
			return "", fmt.Errorf("hash sources of %s: %w", t.Name, err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// isOwn reports whether a file belongs to the target: tests and the Prepare script.
func (t Target) isOwn(name string) bool {
	return t.Test && strings.HasSuffix(name, "_test.go") || t.Prepare != "" && name == path.Join(t.Dir, t.Prepare)
}

func isSource(name string) bool {
	base := name[strings.LastIndexByte(name, '/')+1:]
	if base == "go.mod" || base == "go.sum" {
		return true
	}
	return strings.HasSuffix(base, ".go") && !strings.HasSuffix(base, "_test.go")
}
