// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	clientSpace, proxySpace, backendSpace = "client", "proxy", "backend"

	clientAddress, proxyAddress    = "198.51.100.1", "198.51.100.2"
	outsideAddress, backendAddress = "203.0.113.1", "203.0.113.2"

	hostname    = "shop.example.com"
	backendPort = 8080
	waitTimeout = 20 * time.Second
)

type world struct {
	directory        string
	programs         string
	chain, key, pair string
	// processor is the CPU of the proxy, others are the CPUs of load and backend: "0", "1-3".
	processor, others string
	started           []*process
	control           func()
}

func newWorld(o options) (*world, error) {
	w := &world{control: func() {}}
	var err error
	if w.programs, err = filepath.Abs(o.programs); err != nil {
		return w, err
	}
	if w.directory, err = os.MkdirTemp("", "bench-gateway-"); err != nil {
		return w, err
	}
	if err := os.Chmod(w.directory, 0o755); err != nil {
		return w, err
	}
	w.processor, w.others = "0", "0"
	if n := runtime.NumCPU(); n > 1 {
		w.others = fmt.Sprintf("1-%d", n-1)
	}
	if err := w.writeCertificate(); err != nil {
		return w, err
	}
	for _, line := range []string{
		"netns add client", "netns add proxy", "netns add backend",
		"link add front netns client type veth peer name front netns proxy",
		"link add back netns proxy type veth peer name back netns backend",
		"-n client address add " + clientAddress + "/24 dev front",
		"-n proxy address add " + proxyAddress + "/24 dev front",
		"-n proxy address add " + outsideAddress + "/24 dev back",
		"-n backend address add " + backendAddress + "/24 dev back",
		"-n client link set front up", "-n proxy link set front up", "-n proxy link set lo up",
		"-n proxy link set back up", "-n backend link set back up",
	} {
		if _, err := sh(context.Background(), append([]string{"ip"}, strings.Fields(line)...)...); err != nil {
			return w, err
		}
	}
	return w, w.startAll(o.subjects)
}

func (w *world) close() error {
	w.control()
	var errs []error
	for _, p := range w.started {
		errs = append(errs, p.stop())
	}
	if w.directory != "" {
		errs = append(errs, os.RemoveAll(w.directory))
	}
	return errors.Join(errs...)
}

func (w *world) file(name string) string { return filepath.Join(w.directory, name) }

func (w *world) write(name, content string) (string, error) {
	return w.file(name), os.WriteFile(w.file(name), []byte(content), 0o644)
}

func (w *world) writeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: hostname}, DNSNames: []string{hostname},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	secret := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	var errs [3]error
	w.chain, errs[0] = w.write("tls.crt", chain)
	w.key, errs[1] = w.write("tls.key", secret)
	w.pair, errs[2] = w.write("tls.pem", chain+secret)
	return errors.Join(errs[:]...)
}

type process struct {
	command *exec.Cmd
	// ended is closed when the process has ended.
	ended  chan struct{}
	output *os.File
}

// start runs a command in a namespace, on a list of CPUs.
func (w *world) start(name, space, processors string, line ...string) (*process, error) {
	output, err := os.Create(w.file(name + ".log"))
	if err != nil {
		return nil, err
	}
	p := &process{output: output, ended: make(chan struct{})}
	p.command = exec.Command("ip", append([]string{"netns", "exec", space, "taskset", "--cpu-list", processors}, line...)...)
	p.command.Stdout, p.command.Stderr, p.command.Dir = output, output, w.directory
	// Caddy needs a directory for its data.
	p.command.Env = append(os.Environ(), "HOME="+w.directory, "GOMAXPROCS=")
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.command.Wait()
	}()
	w.started = append(w.started, p)
	return p, nil
}

func (p *process) stop() error {
	defer p.output.Close()
	err := syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	<-p.ended
	return err
}

func (w *world) reachable(p *process, space, address string) error {
	deadline := time.Now().Add(waitTimeout)
	for {
		err := within(space, func() error {
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			output, _ := os.ReadFile(p.output.Name())
			return fmt.Errorf("%s has ended: %s", filepath.Base(p.output.Name()), output)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			output, _ := os.ReadFile(p.output.Name())
			return fmt.Errorf("nothing listens at %s: %w: %s", address, err, output)
		}
	}
}
