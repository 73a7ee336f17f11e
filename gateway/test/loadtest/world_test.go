// SPDX-License-Identifier: Apache-2.0

package loadtest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/gateway/distribution/server"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

const (
	controllerName = "controller.example.com"
	hostname       = "shop.example.com"
	waitTimeout    = 20 * time.Second
)

// world is a proxy as in a pod. Requests below /held get no response before the end of the test.
type world struct {
	plain, secure, admin string
	// probes is a client of admin with a certificate of the controller's CA.
	probes http.Client
	cgroup string
	proxy  *exec.Cmd
	// logs is the log file of the proxy; ended is closed when the proxy has ended.
	logs  string
	ended chan struct{}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{plain: freeAddress(t), secure: freeAddress(t), admin: freeAddress(t), ended: make(chan struct{})}
	backend := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("fine")) })
	end := make(chan struct{})
	var held []*resource.Endpoint
	// The requests exceed the limit of one endpoint.
	for range 4 {
		held = append(held, serve(t, func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}))
	}
	t.Cleanup(func() { close(end) })
	directory := t.TempDir()
	program := filepath.Join(directory, "lbproxy")
	if output, err := exec.Command("go", "build", "-o", program, "../../../cmd/lbproxy").CombinedOutput(); err != nil {
		t.Fatalf("build lbproxy: %v: %s", err, output)
	}
	controller := w.control(t, directory, backend, held)
	w.start(t, directory, program, "--controller", controller, "--controller-name", controllerName,
		"--controller-ca", filepath.Join(directory, "ca.crt"), "--token", filepath.Join(directory, "token"),
		"--bind-address", "127.0.0.1", "--admin-bind-address", w.admin, "--drain-delay", "0s", "--drain-timeout", "1ms")
	w.awaitReady(t)
	return w
}

func serve(t *testing.T, handler http.HandlerFunc) *resource.Endpoint {
	t.Helper()
	backend := httptest.NewServer(handler)
	t.Cleanup(backend.Close)
	at := backend.Listener.Addr().(*net.TCPAddr)
	return &resource.Endpoint{Address: at.IP.String(), Port: uint32(at.Port)}
}

// freeAddress returns a port below the ephemeral range, which connections of other tests cannot use.
func freeAddress(t *testing.T) string {
	t.Helper()
	var failures []error
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(10_000)))
		free, err := net.Listen("tcp", address)
		if err == nil {
			must(t, free.Close())
			return address
		}
		failures = append(failures, err)
	}
	t.Fatal(errors.Join(failures...))
	return ""
}

func (w *world) control(t *testing.T, directory string, backend *resource.Endpoint, held []*resource.Endpoint) (address string) {
	t.Helper()
	chain, key, err := routetest.Certificate(controllerName)
	must(t, err)
	pair, err := tls.X509KeyPair(chain, key)
	must(t, err)
	w.probes.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}
	must(t, os.WriteFile(filepath.Join(directory, "ca.crt"), chain, 0o600))
	must(t, os.WriteFile(filepath.Join(directory, "token"), []byte("loadtest"), 0o600))
	const owner = "IngressClass//millrace"
	configurations := server.NewServer(func(context.Context, string) (server.Identity, error) {
		return server.Identity{Owner: owner, Pod: "default/proxy"}, nil
	})
	configurations.Set(owner, w.resources(t, backend, held))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	serving := configurations.NewGRPC(ctx, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	go func() { _ = serving.Serve(listener) }()
	t.Cleanup(func() {
		cancel()
		serving.Stop()
	})
	return listener.Addr().String()
}

func (w *world) resources(t *testing.T, backend *resource.Endpoint, held []*resource.Endpoint) []*resource.Resource {
	t.Helper()
	port := func(address string) uint32 {
		_, text, err := net.SplitHostPort(address)
		must(t, err)
		number, err := strconv.ParseUint(text, 10, 16)
		must(t, err)
		return uint32(number)
	}
	password, users := protected()
	all := []*resource.Resource{
		users,
		{Name: "http", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 80, TargetPort: port(w.plain), Protocol: resource.Listener_HTTP,
		}}},
		{Name: "https", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 443, TargetPort: port(w.secure), Protocol: resource.Listener_HTTPS, Certificates: []string{"certificate"},
		}}},
		certificate(t),
		{Name: "group", Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
			Listeners: []string{"http", "https"}, Hostname: &resource.Hostname{Name: hostname},
			Rules: []*resource.Rule{rule("/held", "held"), authorizedRule(), password, rule("/", "backend")},
		}}},
		{Name: "backend", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "endpoints"}}},
		{Name: "endpoints", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{
			Endpoints: []*resource.Endpoint{backend},
		}}},
		{Name: "held", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "held/endpoints"}}},
		{Name: "held/endpoints", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{Endpoints: held}}},
	}
	slices.SortFunc(all, func(a, b *resource.Resource) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

func rule(prefix, backend string) *resource.Rule {
	return &resource.Rule{
		Route: "ingress/default/" + backend + "/0", Match: &resource.Match{Path: &resource.PathMatch{Value: prefix}},
		Backends: []*resource.WeightedBackend{{Backend: backend, Weight: 1}},
	}
}

func authorizedRule() *resource.Rule {
	rule := rule("/asked", "backend")
	rule.Filters = []*resource.Filter{{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: &resource.ExternalAuthorization{
		Backend: "held", Path: "/", RequestHeaders: []string{"*"}, Timeout: 60_000}}}}
	return rule
}

func certificate(t *testing.T) *resource.Resource {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(hostname, nil, nil)
	must(t, err)
	return &resource.Resource{Name: "certificate", Kind: &resource.Resource_Certificate{
		Certificate: &resource.Certificate{Chain: chain, Key: key},
	}}
}

// start runs the proxy in a cgroup, mounted where a pod has its own.
func (w *world) start(t *testing.T, directory, program string, arguments ...string) {
	t.Helper()
	root, file, seen := "/sys/fs/cgroup", "memory.max", "/sys/fs/cgroup"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		root, file, seen = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/sys/fs/cgroup/memory"
	} else {
		must(t, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0o600))
	}
	w.cgroup = filepath.Join(root, fmt.Sprintf("millrace-loadtest-%d", os.Getpid()))
	must(t, os.Mkdir(w.cgroup, 0o755))
	must(t, os.WriteFile(filepath.Join(w.cgroup, file), []byte(strconv.Itoa(size())), 0o600))
	w.logs = filepath.Join(directory, "said")
	logs, err := os.Create(w.logs)
	must(t, err)
	defer logs.Close()
	const script = `echo $$ > "$1/cgroup.procs" && mount --bind "$1" "$2" && shift 2 && exec "$@"`
	w.proxy = exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, "loadtest", w.cgroup, seen, program}, arguments...)...)
	w.proxy.Stdout, w.proxy.Stderr = logs, logs
	must(t, w.proxy.Start())
	go func() {
		_ = w.proxy.Wait()
		close(w.ended)
	}()
	t.Cleanup(func() {
		_ = w.proxy.Process.Kill()
		<-w.ended
		deadline := time.Now().Add(waitTimeout)
		err := os.Remove(w.cgroup)
		for ; errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline); err = os.Remove(w.cgroup) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Logf("remove the cgroup: %v", err)
		}
	})
}

func (w *world) awaitReady(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); ; {
		answer, err := w.probes.Get("https://" + w.admin + "/readyz")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the proxy is not ready: %v: %s", err, w.words())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *world) words() string {
	text, _ := os.ReadFile(w.logs)
	return string(text)
}

func (w *world) alive(t *testing.T) {
	t.Helper()
	select {
	case <-w.ended:
		words := w.words()
		t.Fatalf("the proxy exited: %v: %s", w.proxy.ProcessState, words[max(0, len(words)-2000):])
	default:
	}
}

// most returns the peak memory of the cgroup, including kernel memory.
func (w *world) most(t *testing.T) string {
	t.Helper()
	for _, file := range []string{"memory.max_usage_in_bytes", "memory.peak"} {
		if text, err := os.ReadFile(filepath.Join(w.cgroup, file)); err == nil {
			bytes, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			return fmt.Sprintf("%d MiB", bytes>>20)
		}
	}
	return "unknown"
}

func (w *world) shed(t *testing.T) string {
	t.Helper()
	answer, err := w.probes.Get("https://" + w.admin + "/metrics")
	must(t, err)
	defer answer.Body.Close()
	var found []string
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "millrace_proxy_load_shed_total"); ok {
			found = append(found, text)
		}
	}
	return strings.Join(found, ", ")
}
