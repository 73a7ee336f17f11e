// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/millrace-lb/millrace/test/lab/internal/cache"
	"github.com/millrace-lb/millrace/test/lab/internal/cgroup"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/pki"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// Options configure Up.
type Options struct {
	Nodes, Routers int
	// NodeGrace is the grace period of failed nodes, or config.KubernetesTiming.
	NodeGrace time.Duration
	// IPv4Nodes makes Nodes list IPv4 addresses only. A dual-stack kube-proxy answers health checks of an
	// IPv4 Service on these only, while Kubernetes' tests probe all addresses of a Node.
	IPv4Nodes   bool
	CNI         config.CNI
	ProxyMode   string
	Router      config.Router
	Root, State string
}

// Progress prints progress messages.
type Progress func(format string, args ...any)

// Build fills the cache and returns the programs' directories by target and the workload's image archive.
func Build(ctx context.Context, root string, cni config.CNI, progress Progress) (map[string]string, string, error) {
	store, err := cache.Open(ctx, root, progress)
	if err != nil {
		return nil, "", err
	}
	programs := map[string]string{}
	for _, target := range slices.Concat(cache.Targets(), cache.CNI(cni.Project())) {
		if programs[target.Name], err = store.Ensure(ctx, target); err != nil {
			return nil, "", err
		}
	}
	image, err := store.EnsureImage(ctx, programs["echo"], "echo", config.SandboxImage)
	return programs, image, err
}

// BuildTests fills the cache with Kubernetes' tests and returns their program and their workload.
func BuildTests(ctx context.Context, root string, progress Progress) (program, workload string, err error) {
	store, err := cache.Open(ctx, root, progress)
	if err != nil {
		return "", "", err
	}
	tests, pods := cache.KubernetesTests()
	testsDir, err := store.Ensure(ctx, tests)
	if err != nil {
		return "", "", err
	}
	podsDir, err := store.Ensure(ctx, pods)
	return filepath.Join(testsDir, "e2e.test"), filepath.Join(podsDir, "agnhost"), err
}

var errInterrupted = errors.New("up was interrupted; nothing of the lab is left")

// Up starts a lab and returns when all nodes are Ready. After a failure the lab remains for inspection
// until Down. When ctx ends, Up removes everything.
func Up(ctx context.Context, options Options, progress Progress) error {
	release, err := lockLab()
	if err != nil {
		return err
	}
	defer release()
	if err := preflight(options, progress); err != nil {
		return err
	}
	programs, image, err := Build(ctx, options.Root, options.CNI, progress)
	if err != nil {
		return err
	}
	lab, err := newLab(options.State, state{
		Nodes:       options.Nodes,
		Routers:     options.Routers,
		NodeGrace:   options.NodeGrace,
		Snapshotter: snapshotter(options.Root),
		IPv4Nodes:   options.IPv4Nodes,
		CNI:         options.CNI,
		ProxyMode:   options.ProxyMode,
		Router:      options.Router,
		Programs:    programs,
	})
	if err != nil {
		return err
	}
	err = lab.up(ctx, image, progress)
	if err != nil && ctx.Err() != nil {
		progress("interrupted: removing what there is")
		if _, err := down(options.State); err != nil {
			return err
		}
		return errInterrupted
	}
	if err != nil {
		return fmt.Errorf("%w (started processes keep running for inspection; `bin/lab down` removes them)", err)
	}
	return nil
}

func (l *Lab) up(ctx context.Context, image string, progress Progress) error {
	var err error
	if l.state.Controllers, err = cgroup.Missing(); err != nil {
		return err
	}
	if err := l.save(); err != nil {
		return err
	}
	if err := cgroup.Delegate(config.NamespacePrefix, l.state.Controllers); err != nil {
		return err
	}
	if err := l.writeKeys(); err != nil {
		return err
	}
	if _, err := l.keepImage(image); err != nil {
		return err
	}
	if err := l.addSegments(); err != nil {
		return err
	}
	for _, host := range l.Topology.Hosts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.connect(host); err != nil {
			return err
		}
	}
	progress("network: %d hosts are connected", len(l.Topology.Hosts))
	if err := l.bootAll(ctx); err != nil {
		return err
	}
	progress("machines: booted, waiting for the control plane")
	if err := l.awaitAPI(ctx); err != nil {
		return err
	}
	progress("control plane: ready at %s", l.Server())
	if err := l.introduceCNI(ctx); err != nil {
		return err
	}
	return l.awaitNodes(ctx, func(name string) { progress("%s: Ready", name) })
}

func (l *Lab) writeKeys() error {
	authority, err := pki.NewAuthority(l.KeyDir())
	if err != nil {
		return err
	}
	if err := authority.WriteKeyPair(config.ServiceAccounts); err != nil {
		return err
	}
	for _, identity := range l.Identities() {
		if err := authority.Issue(identity); err != nil {
			return err
		}
	}
	files, err := l.Kubeconfigs()
	if err != nil {
		return err
	}
	return writeFiles(files, 0o600)
}

func (l *Lab) addSegments() error {
	if err := netns.Create(config.FabricNamespace); err != nil {
		return err
	}
	return netns.Do(config.FabricNamespace, func() error {
		if err := netns.Sysctls(bridgeSysctls()); err != nil {
			return err
		}
		for _, segment := range []topology.Segment{topology.Fabric, topology.Outside} {
			if err := netns.AddBridge(string(segment)); err != nil {
				return err
			}
		}
		return nil
	})
}

// bridgeSysctls disable netfilter for bridged packets, if loaded, and addresses on bridges.
func bridgeSysctls() []topology.Sysctl {
	sysctls := []topology.Sysctl{{Name: "net/ipv6/conf/default/disable_ipv6", Value: "1"}}
	for _, name := range []string{"iptables", "ip6tables", "arptables"} {
		path := "net/bridge/bridge-nf-call-" + name
		if _, err := os.Stat(filepath.Join("/proc/sys", path)); err == nil {
			sysctls = append(sysctls, topology.Sysctl{Name: path, Value: "0"})
		}
	}
	return sysctls
}

func (l *Lab) connect(host topology.Host) error {
	namespace := config.Namespace(host.Name)
	if err := netns.Create(namespace); err != nil {
		return err
	}
	err := netns.Do(namespace, func() error { return netns.Sysctls(host.Sysctls) })
	if err != nil {
		return fmt.Errorf("connect %s: %w", host.Name, err)
	}
	err = netns.Do(config.FabricNamespace, func() error {
		for _, iface := range host.Interfaces {
			if err := netns.AddPort(namespace, iface, host.Role == topology.RoleNode); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("connect %s: %w", host.Name, err)
	}
	err = netns.Do(namespace, func() error { return netns.Configure(host) })
	if err != nil {
		return fmt.Errorf("connect %s: %w", host.Name, err)
	}
	return nil
}

func (l *Lab) bootAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, host := range l.Topology.Hosts {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return l.boot(host)
		})
	}
	return group.Wait()
}

func (l *Lab) boot(host topology.Host) error {
	spec, files, err := l.Machine(host)
	if err != nil {
		return err
	}
	if err := writeFiles(files, 0o644); err != nil {
		return err
	}
	if host.Role == topology.RoleNode {
		// The kubelet publishes the boot ID (proc_sys_kernel(5)), so each boot gets a new one.
		spec.ShadowSysctls["kernel/random/boot_id"] = string(uuid.NewUUID())
	}
	return machine.Start(spec)
}

func writeFiles(files []config.File, mode os.FileMode) error {
	for _, file := range files {
		if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
		if err := os.WriteFile(file.Path, file.Content, mode); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}

// snapshotter returns the snapshotter for the file system of dir, because overlays cannot be nested.
func snapshotter(dir string) string {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err == nil && stat.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}
