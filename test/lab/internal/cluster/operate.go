// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/cgroup"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// HostStatus is a host with the PID of its machine, 0 if it is off.
type HostStatus struct {
	topology.Host
	Pid int
}

// Hosts returns all hosts.
func (l *Lab) Hosts() ([]HostStatus, error) {
	var hosts []HostStatus
	for _, host := range l.Topology.Hosts {
		pid, err := machine.Pid(l.identify(host))
		if err != nil && !errors.Is(err, machine.ErrNotRunning) {
			return nil, err
		}
		hosts = append(hosts, HostStatus{Host: host, Pid: pid})
	}
	return hosts, nil
}

func (l *Lab) identify(host topology.Host) machine.Spec {
	return machine.Spec{Name: host.Name, Namespace: config.Namespace(host.Name), Dir: l.Dir(host.Name)}
}

func (l *Lab) logs(host string) string { return machine.LogDir(l.Dir(host)) }

// Exec runs a command on a host and returns its exit code.
func (l *Lab) Exec(name string, args []string) (int, error) {
	host, err := l.host(name)
	if err != nil {
		return 0, err
	}
	spec, err := machine.Load(l.Dir(host.Name))
	if err != nil {
		return 0, err
	}
	return machine.Exec(spec, args)
}

// Kubectl executes kubectl in the control plane's network namespace, replacing this process. It returns
// only on failure.
func (l *Lab) Kubectl(args []string) error {
	environment := append(os.Environ(), "KUBECONFIG="+l.Kubeconfig(config.Admin),
		// All labs have the same address, so the user's discovery cache may be stale.
		"KUBECACHEDIR="+filepath.Join(l.dir, "kubectl"), "KUBERC=off")
	command := append([]string{l.Kubernetes(), "kubectl"}, args...)
	return netns.Do(config.Namespace(l.Topology.ControlPlane().Name), func() error {
		err := unix.Exec(command[0], command, environment)
		return fmt.Errorf("run kubectl: %w", err)
	})
}

// StopNode stops a node like a power loss: its links are cut, then all processes are killed. Its disk
// remains.
func (l *Lab) StopNode(name string) error {
	host, err := l.node(name)
	if err != nil {
		return err
	}
	release, err := lockLab()
	if err != nil {
		return err
	}
	defer release()
	if _, err := machine.Pid(l.identify(host)); err != nil {
		return err
	}
	if err := l.setPorts(host, false); err != nil {
		return err
	}
	return l.powerOff(host)
}

func (l *Lab) powerOff(host topology.Host) error {
	namespace := config.Namespace(host.Name)
	if err := machine.KillAll([]string{namespace}); err != nil {
		return err
	}
	err := netns.Do(config.FabricNamespace, func() error {
		for _, iface := range host.Interfaces {
			if err := netns.DeletePort(iface.Port); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := netns.Delete(namespace); err != nil {
		return err
	}
	// The kubelet boots slowly with stale cgroups of pods.
	return cgroup.Remove(namespace)
}

// StartNode boots a stopped node and waits until it is Ready.
func (l *Lab) StartNode(ctx context.Context, name string) error {
	host, err := l.node(name)
	if err != nil {
		return err
	}
	release, err := lockLab()
	if err != nil {
		return err
	}
	defer release()
	if pid, err := machine.Pid(l.identify(host)); err == nil {
		return fmt.Errorf("node %s is running already, as process %d", name, pid)
	}
	// An interrupted start may have left resources.
	if _, err := os.Stat(netns.Path(config.Namespace(name))); err == nil {
		if err := l.powerOff(host); err != nil {
			return err
		}
	}
	before, err := l.heartbeat(ctx, name)
	if err != nil {
		return err
	}
	if err := l.connect(host); err != nil {
		return err
	}
	if err := l.boot(host); err != nil {
		return err
	}
	return l.awaitReady(ctx, map[string]time.Time{name: before}, func(string) {})
}

// SetLink sets all links of a host down or up.
func (l *Lab) SetLink(name string, up bool) error {
	host, err := l.host(name)
	if err != nil {
		return err
	}
	return l.setPorts(host, up)
}

func (l *Lab) setPorts(host topology.Host, up bool) error {
	err := netns.Do(config.FabricNamespace, func() error {
		for _, iface := range host.Interfaces {
			if err := netns.SetPort(iface.Port, up); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set links of %s: %w", host.Name, err)
	}
	return nil
}
