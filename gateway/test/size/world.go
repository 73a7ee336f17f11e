// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/gateway/distribution/server"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	owner          = "IngressClass//web"
	controllerName = "controller.example.com"
	waitTimeout    = 2 * time.Minute
)

type world struct {
	directory string
	address   string
	compiler  route.Compiler
	server    *server.Server
	last      map[*resource.Resource]bool
	endpoints map[string]*resource.Resource
	stop      func()
	proxies   []*exec.Cmd
}

func newWorld(o options) (*world, error) {
	w := &world{stop: func() {}, endpoints: map[string]*resource.Resource{}}
	var err error
	if w.directory, err = os.MkdirTemp("", "size-gateway-"); err != nil {
		return w, err
	}
	chain, key, err := cert.GenerateSelfSignedCertKey(controllerName, nil, nil)
	if err != nil {
		return w, err
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return w, err
	}
	for name, content := range map[string][]byte{"ca.crt": chain, "token": []byte("size")} {
		if err := os.WriteFile(w.file(name), content, 0o600); err != nil {
			return w, err
		}
	}
	w.server = server.NewServer(func(context.Context, string) (server.Identity, error) {
		return server.Identity{Owner: owner, Pod: "default/proxy"}, nil
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return w, err
	}
	w.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	serving := w.server.NewGRPC(ctx, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	go func() { _ = serving.Serve(listener) }()
	w.stop = func() {
		cancel()
		serving.Stop()
	}
	return w, nil
}

func (w *world) file(name string) string { return filepath.Join(w.directory, name) }

func (w *world) close() error {
	for _, proxy := range w.proxies {
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
	}
	w.stop()
	return os.RemoveAll(w.directory)
}

func (w *world) startProxies(o options) error {
	for i := range o.proxies {
		logs, err := os.Create(w.file(fmt.Sprintf("proxy-%d.log", i)))
		if err != nil {
			return err
		}
		defer logs.Close()
		proxy := exec.Command(filepath.Join(o.programs, "lbproxy"),
			"--controller", w.address, "--controller-name", controllerName, "--controller-ca", w.file("ca.crt"),
			"--token", w.file("token"), "--store", w.file(fmt.Sprintf("proxy-%d.store", i)),
			"--bind-address", fmt.Sprintf("127.0.0.%d", 2+i), "--admin-bind-address", "127.0.0.1:0")
		proxy.Stdout, proxy.Stderr = logs, logs
		if err := proxy.Start(); err != nil {
			return err
		}
		w.proxies = append(w.proxies, proxy)
	}
	return nil
}

func (w *world) compile(objects *model.Objects) (int, error) {
	result := w.compiler.Compile(objects, model.DefaultSettings())
	if len(result.Proxies) != 1 {
		return 0, fmt.Errorf("the objects compile to %d proxies", len(result.Proxies))
	}
	proxy := result.Proxies[0]
	served := make([]*resource.Resource, 0, len(proxy.Backends))
	for i, port := range proxy.Backends {
		known := w.endpoints[model.EndpointsName(port)]
		if known == nil {
			known = endpoints(model.EndpointsName(port), i)
			w.endpoints[known.GetName()] = known
		}
		served = append(served, known)
	}
	resources := model.Merge(proxy.Resources, served)
	w.server.Set(owner, resources)
	return w.differ(resources), nil
}

func (w *world) differ(resources []*resource.Resource) int {
	current, differ := make(map[*resource.Resource]bool, len(resources)), 0
	for _, r := range resources {
		current[r] = true
		if !w.last[r] {
			differ++
		}
	}
	w.last = current
	return differ
}

func endpoints(name string, service int) *resource.Resource {
	found := &resource.Endpoints{}
	for i := range 3 {
		number := 3*service + i
		found.Endpoints = append(found.Endpoints, &resource.Endpoint{
			Address: fmt.Sprintf("198.18.%d.%d", number/250, 1+number%250), Port: 8080,
		})
	}
	return &resource.Resource{Name: name, Kind: &resource.Resource_Endpoints{Endpoints: found}}
}

func (w *world) version() string {
	for _, proxy := range w.server.Proxies() {
		return proxy.Acknowledged
	}
	return ""
}

// served waits until all proxies serve another version than before.
func (w *world) served(ctx context.Context, before string) error {
	deadline := time.Now().Add(waitTimeout)
	for ; ; time.Sleep(time.Millisecond) {
		done := 0
		for _, proxy := range w.server.Proxies() {
			if proxy.Refusal != "" {
				return fmt.Errorf("a proxy rejects resources: %s", proxy.Refusal)
			}
			if proxy.Acknowledged != "" && proxy.Acknowledged != before {
				done++
			}
		}
		if done == len(w.proxies) {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			output, _ := os.ReadFile(w.file("proxy-0.log"))
			return fmt.Errorf("%d of %d proxies serve the change: %s", done, len(w.proxies), output)
		}
	}
}

func (w *world) times() (mine, theirs time.Duration, err error) {
	if mine, err = processTime(os.Getpid()); err != nil {
		return 0, 0, err
	}
	for _, proxy := range w.proxies {
		took, err := processTime(proxy.Process.Pid)
		if err != nil {
			return 0, 0, err
		}
		theirs += took
	}
	return mine, theirs, nil
}

// processTime reads the CPU clock of a process, see clock_getcpuclockid(3).
func processTime(pid int) (time.Duration, error) {
	const scheduled = 2
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &at); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(at.Nano()), nil
}

func (w *world) memory() (uint64, error) {
	var most uint64
	for _, proxy := range w.proxies {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", proxy.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := bytes.Cut(status, []byte("RssAnon:"))
		fields := bytes.Fields(rest)
		if len(fields) == 0 {
			return 0, errors.New("RssAnon is missing in /proc/PID/status")
		}
		kilobytes, err := strconv.ParseUint(string(fields[0]), 10, 64)
		if err != nil {
			return 0, err
		}
		most = max(most, kilobytes<<10)
	}
	return most, nil
}
