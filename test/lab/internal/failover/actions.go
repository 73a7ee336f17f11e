// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/test/harness"
)

type action = func(ctx context.Context, r *run) error

func all(actions ...action) action {
	return func(ctx context.Context, r *run) error {
		for _, do := range actions {
			if err := do(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
}

func lab(args ...string) action {
	return func(ctx context.Context, r *run) error { _, err := r.Run(ctx, args...); return err }
}

func kubectl(args ...string) action {
	return func(ctx context.Context, r *run) error { _, err := r.Kubectl(ctx, args...); return err }
}

func millrace(args ...string) action {
	return func(ctx context.Context, r *run) error { _, err := r.Millrace(ctx, args...); return err }
}

func patchPeers(patch string) action {
	return func(ctx context.Context, r *run) error { return r.patchPeers(ctx, patch, peerNames()...) }
}

func bothFamilies(ctx context.Context, r *run) error {
	if err := patchPeers(`{"spec":{"families":["IPv4","IPv6"]}}`)(ctx, r); err != nil {
		return err
	}
	return r.rolled(ctx, peerNames()...)
}

func (r *run) patchPeers(ctx context.Context, patch string, names ...string) error {
	_, err := r.Kubectl(ctx, append([]string{"patch", "lbpeers", "--type=merge", "-p", patch}, names...)...)
	return err
}

func peerNames() (names []string) {
	for _, host := range routers {
		names = append(names, peerName(host, false), peerName(host, true))
	}
	return names
}

func peerName(host string, ipv6 bool) string {
	if ipv6 {
		return host + "-v6"
	}
	return host
}

func patchAdvertisement(patch string) action {
	return kubectl("patch", "vipadvertisement", "all", "--type=merge", "-p", patch)
}

var evict = kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s")

// reboot is a planned reboot (docs/operate.md, "Take a node out").
func reboot(ctx context.Context, r *run) error {
	if err := all(evict, millrace("drain", node), lab("node", "stop", node))(ctx, r); err != nil {
		return err
	}
	return all(lab("node", "start", node), kubectl("uncordon", node), millrace("undrain", node))(context.WithoutCancel(ctx), r)
}

// block drops packets between router2 and the node in both directions, like a cut link, which the bridge
// cannot simulate.
func block(ctx context.Context, r *run) error {
	_, err := r.Exec(ctx, "router2", "ip", "route", "add", "blackhole", harness.NodeAddress(target, r.vip).String()+"/32")
	return err
}

func unblock(ctx context.Context, r *run) error {
	_, err := r.Exec(ctx, "router2", "ip", "route", "delete", "blackhole", harness.NodeAddress(target, r.vip).String()+"/32")
	return err
}

func killAgents(ctx context.Context, r *run) error {
	for _, host := range nodes {
		if err := signalProgram(ctx, r, host, "/lbagent", "KILL"); err != nil {
			return err
		}
	}
	return nil
}

func signalProgram(ctx context.Context, r *run, host, program, signal string) error {
	pids, err := processes(ctx, r, host, program)
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("%s: no process %s", host, program)
	}
	_, err = r.Exec(ctx, host, append([]string{"kill", "-" + signal}, pids...)...)
	return err
}

func processes(ctx context.Context, r *run, host, program string) ([]string, error) {
	out, err := r.Exec(ctx, host, "ps", "axo", "pid=,args=")
	if err != nil {
		return nil, err
	}
	return running(string(out), program), nil
}

// running returns the PIDs in the output of `ps axo pid=,args=` whose program or first argument has the
// suffix.
func running(ps, program string) (pids []string) {
	for line := range strings.Lines(ps) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		if slices.ContainsFunc(words[1:min(3, len(words))], func(w string) bool { return strings.HasSuffix(w, program) }) {
			pids = append(pids, words[0])
		}
	}
	return pids
}

func stopAPI(meanwhile action) action {
	return func(ctx context.Context, r *run) (err error) {
		if err := signalProgram(ctx, r, "cp", "kube-apiserver", "STOP"); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, signalProgram(context.WithoutCancel(ctx), r, "cp", "kube-apiserver", "CONT"))
		}()
		over := time.After(time.Minute)
		if meanwhile != nil {
			if err := meanwhile(ctx, r); err != nil {
				return err
			}
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// restartRouter kills a router's BGP daemon, which the lab restarts after a second, and measures the time
// until the router has all routes. With graceful restart the kernel retains them, and the time is that of
// the sessions.
func restartRouter(host string) action {
	return func(ctx context.Context, r *run) error {
		before, err := processes(ctx, r, host, r.routers.daemon())
		if err != nil {
			return err
		}
		if err := signalProgram(ctx, r, host, r.routers.daemon(), "KILL"); err != nil {
			return err
		}
		absent := time.Now()
		err = harness.Eventually(ctx, time.Minute, func(ctx context.Context) error {
			looked := time.Now()
			now, err := processes(ctx, r, host, r.routers.daemon())
			if err == nil && (len(now) == 0 || slices.Equal(now, before)) {
				absent = looked
				err = fmt.Errorf("%s: %s is not back", host, r.routers.daemon())
			}
			return err
		})
		if err != nil {
			return err
		}
		err = harness.Eventually(ctx, time.Minute, func(ctx context.Context) error { return r.complete(ctx, host) })
		r.back = time.Since(absent)
		return err
	}
}

// complete checks that a router has the VIP's routes from all nodes in its table and its kernel.
func (r *run) complete(ctx context.Context, host string) error {
	paths, err := r.routers.paths(ctx, r, host, r.vip)
	if err != nil {
		return err
	}
	if paths < len(nodes) {
		return fmt.Errorf("%s has %d routes of %s", host, paths, r.vip)
	}
	return r.RoutedTo(ctx, host, r.vip, 1, 2, 3)
}

func graceful(host string, on bool) action {
	return func(ctx context.Context, r *run) error { return r.routers.graceful(ctx, r, host, on) }
}

// loadCPU runs two busy loops per node for a time and reports lost sessions.
func loadCPU(lasts time.Duration) action {
	return func(ctx context.Context, r *run) error {
		before, err := r.sessions(ctx)
		if err != nil {
			return err
		}
		var burners errgroup.Group
		for _, host := range nodes {
			for range 2 {
				burners.Go(func() error {
					// timeout(1) exits with 124 as expected.
					_, err := r.Exec(ctx, host, "sh", "-c", fmt.Sprintf(
						"timeout %d sh -c 'while :; do :; done'; [ $? -eq 124 ]", int(lasts.Seconds())))
					return err
				})
			}
		}
		if err := burners.Wait(); err != nil {
			return err
		}
		after, err := r.sessions(ctx)
		if err != nil {
			return err
		}
		lost := alarms(before, after)
		r.alarms = len(lost)
		return nil
	}
}

// removeAgent ends the node's agent after the deletion of its DaemonSet. The other agents remain, because
// the VIP would disappear with the last one.
func removeAgent(ctx context.Context, r *run) error {
	return all(
		kubectl("-n", "millrace-system", "delete", "daemonset", "millrace-agent", "--cascade=orphan"),
		kubectl("-n", "millrace-system", "delete", "pod", "--selector=app.kubernetes.io/component=agent",
			"--field-selector=spec.nodeName="+node),
	)(ctx, r)
}

func install(ctx context.Context, r *run) error {
	_, err := r.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(r.Root(), "config", "lab"))
	return err
}

func (r *run) nodePort(ctx context.Context) (netip.AddrPort, error) {
	var service corev1.Service
	if err := r.Get(ctx, &service, "service", "echo"); err != nil {
		return netip.AddrPort{}, err
	}
	for _, port := range service.Spec.Ports {
		if port.Protocol == corev1.ProtocolTCP && port.NodePort > 0 {
			return netip.AddrPortFrom(harness.NodeAddress(1, r.vip), uint16(port.NodePort)), nil
		}
	}
	return netip.AddrPort{}, errors.New("the Service echo has no node port")
}

// uninstall follows docs/install.md, "Uninstall".
func uninstall(ctx context.Context, r *run) error {
	cleanup, err := r.Kubectl(ctx, "kustomize", filepath.Join(r.Root(), "config", "cleanup"))
	if err != nil {
		return err
	}
	manifest := strings.ReplaceAll(string(cleanup), "ghcr.io/millrace-lb/lbagent:dev", "millrace.test/lbagent:dev")
	return all(
		kubectl("patch", "service", "echo", "echo-local", "--type=merge", "-p", `{"spec":{"type":"NodePort","loadBalancerClass":null}}`),
		kubectl("wait", "--for=delete", "vips", "--all", "--timeout=60s"),
		kubectl("-n", "millrace-system", "delete", "daemonset", "millrace-agent"),
		func(ctx context.Context, r *run) error { return r.Apply(ctx, manifest) },
		kubectl("-n", "millrace-system", "rollout", "status", "daemonset/millrace-cleanup", "--timeout=60s"),
		kubectl("-n", "millrace-system", "delete", "daemonset", "millrace-cleanup"),
		kubectl("delete", "--ignore-not-found", "--wait=false", "-k", filepath.Join(r.Root(), "config", "lab")),
	)(ctx, r)
}
