// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package liveapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

var (
	scaleNodes    = flag.Int("nodes", 1000, "simulated agents")
	scaleServices = flag.Int("services", 10000, "Services, each with a VIP that all nodes announce")
	scaleActive   = flag.Int("active", 500, "Services that each node has traffic of in each sample")
	scaleStrict   = flag.Bool("strict", false, "fail where it costs more than the goals, on a machine that does nothing else")
)

type limits struct {
	// list is the maximum time of `kubectl get` with -strict, or else the median.
	list       time.Duration
	processors float64
	memory     int64
}

// goals are the limits in docs/live.md. slack are limits for a machine with other load.
var (
	goals = limits{list: time.Second, processors: 0.5, memory: 300 << 20}
	slack = limits{list: 4 * time.Second, processors: 0.7, memory: 330 << 20}
)

// TestScale runs the program with many simulated agents and measures its resource usage and the time of
// lists.
func TestScale(t *testing.T) {
	e := newEnvironment(t)
	e.simulate(t)
	e.populate(t)
	process := e.start(t)
	begun := time.Now()
	e.register(t, process.port)
	controlplane.Eventually(t, 3*time.Minute, func(ctx context.Context) error {
		e.warnings.Take()
		list := &livev1alpha1.ServiceTrafficList{}
		if err := e.client.List(ctx, list); err != nil {
			return err
		}
		if report := e.warnings.Take(); report != "" {
			return errors.New(report)
		}
		if len(list.Items) != *scaleServices || list.Items[0].Nodes.Announcing != int32(*scaleNodes) || list.Items[0].Timestamp == nil {
			return fmt.Errorf("%d Services, the first is announced by %+v", len(list.Items), list.Items[0].Nodes)
		}
		return nil
	})
	t.Logf("all %d nodes answer after %.0f s, which took %.1f s of a processor", *scaleNodes, time.Since(begun).Seconds(), process.cpu(t).Seconds())

	// List all objects every five seconds.
	before, start := process.cpu(t), time.Now()
	var lists, prints []time.Duration
	for time.Since(start) < time.Minute {
		sent := time.Now()
		if _, err := e.server.Kubectl(t.Context(), "get", "servicetraffic", "-A"); err != nil {
			t.Fatal(err)
		}
		prints = append(prints, time.Since(sent))
		sent = time.Now()
		list := &livev1alpha1.ServiceTrafficList{}
		must(t, e.client.List(t.Context(), list))
		lists = append(lists, time.Since(sent))
		if age := time.Since(list.Items[0].Timestamp.Time); *scaleStrict && age > 10*time.Second {
			t.Errorf("the counters are %s old", age)
		}
		t.Logf("kubectl took %.2f s, the API %.2f s", prints[len(prints)-1].Seconds(), lists[len(lists)-1].Seconds())
		select {
		case <-t.Context().Done():
		case <-time.After(5 * time.Second):
		}
	}
	used := (process.cpu(t) - before).Seconds() / time.Since(start).Seconds()
	memory, peak := process.memory(t)
	slices.Sort(lists)
	slices.Sort(prints)
	printed, longest := prints[len(prints)/2], prints[len(prints)-1]
	t.Logf("kubectl: median %.2f s, longest %.2f s; list: median %.2f s; processors: %.2f; memory: %d MiB, at most %d MiB",
		printed.Seconds(), longest.Seconds(), lists[len(lists)/2].Seconds(), used, memory>>20, peak>>20)
	want := slack
	if *scaleStrict {
		want, printed = goals, longest
	}
	if printed > want.list {
		t.Errorf("`kubectl get servicetraffic -A` took %.2f s, want %s", printed.Seconds(), want.list)
	}
	if used > want.processors {
		t.Errorf("it uses %.2f processors, want %.1f", used, want.processors)
	}
	if peak > want.memory {
		t.Errorf("it uses %d MiB, want %d", peak>>20, want.memory>>20)
	}
}

func addressOf(node int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 1, byte(node >> 8), byte(node)})
}

func vipOf(service int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(service >> 8), byte(service)})
}

func serviceNameOf(service int) string { return fmt.Sprintf("service-%05d", service) }

// simulate starts a server that answers for all nodes, distinguished by their addresses.
func (e *environment) simulate(t *testing.T) {
	t.Helper()
	certificate := e.authority.issue(t, live.AgentName, x509.ExtKeyUsageServerAuth)
	var vips []netip.Addr
	for service := range *scaleServices {
		vips = append(vips, vipOf(service))
	}
	traffic := make([][]byte, *scaleNodes)
	for node := range traffic {
		answer := live.Traffic{Node: fmt.Sprintf("node-%04d", node), Cursor: "1", Seconds: 5}
		for i := range *scaleActive {
			service := (node*7 + i*(*scaleServices / *scaleActive)) % *scaleServices
			answer.Frontends = append(answer.Frontends, live.FrontendTraffic{
				FrontendName: console.FrontendName{VIP: vipOf(service), Port: 80, Protocol: "TCP", Service: "shop/" + serviceNameOf(service)},
				Packets:      uint64(1000 + i), Bytes: uint64(1000000 + i), Connections: 17,
			})
		}
		var err error
		traffic[node], err = answer.AppendBinary(nil)
		must(t, err)
	}
	mux := http.NewServeMux()
	nodeOf := func(r *http.Request) int {
		local := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort().Addr().Unmap().As4()
		return int(local[2])<<8 | int(local[3])
	}
	mux.HandleFunc(live.PathTraffic, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get(live.ParameterSince) == "" {
			writeTraffic(w, live.Traffic{Node: fmt.Sprintf("node-%04d", nodeOf(r)), Cursor: "1"})
			return
		}
		select {
		case <-r.Context().Done():
		case <-time.After(live.SampleInterval):
			_ = live.WriteBody(w, traffic[nodeOf(r)])
		}
	})
	mux.HandleFunc(live.PathState, func(w http.ResponseWriter, r *http.Request) {
		name := fmt.Sprintf("node-%04d", nodeOf(r))
		if r.URL.Query().Get(live.ParameterSince) == "" {
			write(w, live.State{
				Node: name, Cursor: "1", Whole: true, VIPs: []console.VIPGroup{{Peers: []string{"rack1", "rack2"}, Addresses: vips}},
				Sessions: []console.BGPPeer{{Peer: "rack1", State: "Established"}, {Peer: "rack2", State: "Established"}},
			})
			return
		}
		select {
		case <-r.Context().Done():
		case <-time.After(live.WaitLimit):
			write(w, live.State{Node: name, Cursor: "1"})
		}
	})
	listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", e.port))
	must(t, err)
	server := &http.Server{Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: e.authority.pool(),
	}}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}

func (e *environment) populate(t *testing.T) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(64)
	for node := range *scaleNodes {
		group.Go(func() error {
			return e.client.Create(ctx, &millracev1beta1.LBNode{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", node)},
				Spec:       millracev1beta1.LBNodeSpec{ID: int32(node + 1), Addresses: []string{addressOf(node).String()}},
			})
		})
	}
	for number := range *scaleServices {
		group.Go(func() error {
			name := serviceNameOf(number)
			service := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Finalizers: []string{millracev1beta1.Finalizer}},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: new(false), Ports: []corev1.ServicePort{{Port: 80}}},
			}
			if err := e.client.Create(ctx, service); err != nil {
				return err
			}
			service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vipOf(number).String()}}
			if err := e.client.Status().Update(ctx, service); err != nil {
				return err
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				AddressType: discoveryv1.AddressTypeIPv4,
			}
			for i := range 3 {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i, number>>8, number&255)}, NodeName: new(fmt.Sprintf("node-%04d", (number+i)%*scaleNodes)),
				})
			}
			return e.client.Create(ctx, slice)
		})
	}
	must(t, group.Wait())
}

type process struct {
	id   int
	port uint16
}

func (e *environment) start(t *testing.T) process {
	t.Helper()
	program := filepath.Join(t.TempDir(), "liveapi")
	if output, err := exec.Command("go", "build", "-o", program, "../cmd/liveapi").CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v: %s", err, output)
	}
	kubeconfig, err := e.server.WriteKubeconfig(liveUser)
	must(t, err)
	port := controlplane.FreePort(t)
	command := exec.Command(program, "--kubeconfig="+kubeconfig, fmt.Sprintf("--bind-address=127.0.0.1:%d", port),
		"--certificates="+e.directory, fmt.Sprintf("--agent-port=%d", e.port))
	// config/liveapi sets the same value.
	command.Env = append(os.Environ(), "GOMEMLIMIT=208MiB")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("the program output: %s", content[max(0, len(content)-5000):])
		}
		_ = log.Close()
	})
	return process{command.Process.Pid, port}
}

func (p process) cpu(t *testing.T) time.Duration {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.id))
	must(t, err)
	fields := strings.Fields(string(content[strings.LastIndex(string(content), ")")+1:]))
	var ticks time.Duration
	for _, field := range fields[11:13] {
		count, err := strconv.ParseInt(field, 10, 64)
		must(t, err)
		ticks += time.Duration(count)
	}
	return ticks * 10 * time.Millisecond
}

func (p process) memory(t *testing.T) (now, peak int64) {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", p.id))
	must(t, err)
	defer file.Close()
	content, err := io.ReadAll(file)
	must(t, err)
	for line := range strings.Lines(string(content)) {
		for name, into := range map[string]*int64{"VmRSS:": &now, "VmHWM:": &peak} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				_, err := fmt.Sscanf(rest, "%d kB", into)
				must(t, err)
				*into <<= 10
			}
		}
	}
	return now, peak
}
