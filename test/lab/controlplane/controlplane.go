// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs etcd and the lab's Kubernetes API server on the loopback interface, for tests
// that need a real API server but no cluster. It does not need root.
package controlplane

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/millrace-lb/millrace/test/lab/internal/cache"
	"github.com/millrace-lb/millrace/test/lab/internal/pki"
)

const startTimeout = 2 * time.Minute

const adminToken = "admin"

// frontProxy is the API server's user for aggregated APIs, and the directory of its key.
const frontProxy = "front-proxy-client"

const auditPolicy = `{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
  "rules": [{"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]}, {"level": "None"}]
}`

// Server is a running API server.
type Server struct {
	program, dir string
	root         string
	host         string
	users        []string
	// apiServer is the process started with arguments; exited and etcdExit receive the end of it and of
	// etcd.
	apiServer        *os.Process
	arguments        []string
	exited, etcdExit <-chan error
}

// Start builds the programs unless they are cached and runs them until the test ends. users can
// authenticate but have no permissions. root is the project's directory.
func Start(t *testing.T, root string, users ...string) *Server {
	t.Helper()
	s := &Server{dir: t.TempDir(), root: root, users: users}
	if err := s.start(t); err != nil {
		t.Fatalf("start the control plane: %v", err)
	}
	return s
}

func (s *Server) start(t *testing.T) error {
	store, err := cache.Open(t.Context(), s.root, t.Logf)
	if err != nil {
		return err
	}
	for _, target := range cache.Targets() {
		if target.Name != "kubernetes" {
			continue
		}
		directory, err := store.Ensure(t.Context(), target)
		if err != nil {
			return err
		}
		s.program = filepath.Join(directory, "kubernetes")
	}
	if err := s.writeFiles(); err != nil {
		return err
	}
	etcdPort, apiPort, err := freePorts()
	if err != nil {
		return err
	}
	s.host = fmt.Sprintf("https://127.0.0.1:%d", apiPort)
	etcd := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	if _, s.etcdExit, err = s.run(t, "etcd", "--dir", filepath.Join(s.dir, "etcd"), "--listen", etcd); err != nil {
		return err
	}
	s.arguments = s.apiServerArguments(etcd, apiPort)
	return s.Restart(t)
}

func freePorts() (int, int, error) {
	first, err := listenOnFree()
	if err != nil {
		return 0, 0, err
	}
	// Both stay open until return, so that they differ.
	defer first.Close()
	second, err := listenOnFree()
	if err != nil {
		return 0, 0, err
	}
	defer second.Close()
	return portOf(first), portOf(second), nil
}

// listenOnFree listens on a port below net.ipv4.ip_local_port_range, because the kernel may assign a port
// of that range to any connection.
func listenOnFree() (net.Listener, error) {
	const lowest, count, attempts = 20000, 12000, 20
	var err error
	for range attempts {
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+mathrand.IntN(count))); err == nil {
			return listener, nil
		}
	}
	return nil, fmt.Errorf("find a free port: %w", err)
}

func portOf(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) writeFiles() error {
	tokens := adminToken + ",admin,admin,system:masters\n"
	for _, user := range s.users {
		tokens += fmt.Sprintf("%s,%s,%s\n", user, user, user)
	}
	if err := os.WriteFile(s.file("tokens.csv"), []byte(tokens), 0o600); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	if err := os.WriteFile(s.file("audit-policy.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("generate the service account key: %w", err)
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(s.file("service-accounts.key"), pem.EncodeToMemory(block), 0o600); err != nil {
		return fmt.Errorf("write the key of service accounts: %w", err)
	}
	authority, err := pki.NewAuthority(s.file(frontProxy))
	if err != nil {
		return err
	}
	return authority.Issue(pki.Identity{Name: frontProxy, User: frontProxy})
}

func (s *Server) apiServerArguments(etcd string, port int) []string {
	return []string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + s.dir,
		"--token-auth-file=" + s.file("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.file("service-accounts.key"),
		"--service-account-signing-key-file=" + s.file("service-accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		// No controller manager creates the default accounts that this plugin waits for.
		"--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none",
		"--audit-policy-file=" + s.file("audit-policy.yaml"),
		"--audit-log-path=" + s.file("audit.log"),
		// Aggregated API servers identify users by these headers.
		"--requestheader-client-ca-file=" + pki.CAFile(s.file(frontProxy)),
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki.CertFile(s.file(frontProxy), frontProxy),
		"--proxy-client-key-file=" + pki.KeyFile(s.file(frontProxy), frontProxy),
	}
}

// Pause stops the API server's process: connections remain without responses until Resume.
func (s *Server) Pause() error { return s.apiServer.Signal(syscall.SIGSTOP) }

// Resume continues the API server.
func (s *Server) Resume() error { return s.apiServer.Signal(syscall.SIGCONT) }

// Kill kills the API server and waits for its end. Connections are refused until Restart; etcd retains the
// objects.
func (s *Server) Kill() error {
	if err := s.apiServer.Kill(); err != nil {
		return fmt.Errorf("end kube-apiserver: %w", err)
	}
	if end := <-s.exited; end == nil {
		return errors.New("kube-apiserver ended without saying so")
	}
	return nil
}

// Restart starts the API server on the same port and waits until it is ready.
func (s *Server) Restart(t *testing.T) error {
	var err error
	if s.apiServer, s.exited, err = s.run(t, "kube-apiserver", s.arguments...); err != nil {
		return err
	}
	return s.awaitReady(t.Context(), s.etcdExit, s.exited)
}

// run starts a program; the channel receives its end.
func (s *Server) run(t *testing.T, name string, arguments ...string) (*os.Process, <-chan error, error) {
	output, err := os.Create(s.file(name + ".log"))
	if err != nil {
		return nil, nil, fmt.Errorf("create the log of %s: %w", name, err)
	}
	command := exec.Command(s.program, append([]string{name}, arguments...)...)
	command.Stdout, command.Stderr = output, output
	// The program ends with a killed test.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited, done := make(chan error), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		// Pdeathsig is sent when the thread that started the program ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			// The state of the process contains the error.
			_ = command.Wait()
			exited <- fmt.Errorf("%s ended (%s): %s", name, command.ProcessState, tail(output.Name()))
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-done
		_ = output.Close()
	})
	return command.Process, exited, nil
}

func tail(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-2000):])
}

func (s *Server) awaitReady(ctx context.Context, exits ...<-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		if last = s.ready(ctx); last == nil {
			return nil
		}
		select {
		case err := <-exits[0]:
			return err
		case err := <-exits[1]:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w", s.host, startTimeout, last)
		case <-ticker.C:
		}
	}
}

func (s *Server) ready(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.Admin())
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Admin returns the configuration of a cluster administrator.
func (s *Server) Admin() *rest.Config { return s.User(adminToken) }

// User returns the configuration of one of the users passed to Start.
func (s *Server) User(name string) *rest.Config {
	return &rest.Config{
		Host:            s.host,
		BearerToken:     name,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.file("apiserver.crt")},
		QPS:             -1,
	}
}

// WriteKubeconfig writes a user's kubeconfig and returns its name.
func (s *Server) WriteKubeconfig(user string) (string, error) {
	configuration := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: s.host, CertificateAuthority: s.file("apiserver.crt")}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {Token: user}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: user}},
		CurrentContext: "test",
	}
	// Atomic replacement, because other programs may read the previous file.
	directory, err := os.MkdirTemp(s.dir, "kubeconfig")
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	next, file := filepath.Join(directory, "next"), s.file(user+".kubeconfig")
	if err := errors.Join(clientcmd.WriteToFile(configuration, next), os.Rename(next, file), os.Remove(directory)); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return file, nil
}

// WriteAdminKubeconfig writes the administrator's kubeconfig and returns its name.
func (s *Server) WriteAdminKubeconfig() (string, error) { return s.WriteKubeconfig(adminToken) }

// Kubectl runs kubectl as administrator and returns its output.
func (s *Server) Kubectl(ctx context.Context, arguments ...string) ([]byte, error) {
	kubeconfig, err := s.WriteAdminKubeconfig()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, s.program, append([]string{"kubectl", "--kubeconfig=" + kubeconfig}, arguments...)...)
	var complaints strings.Builder
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		return output, fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, complaints.String())
	}
	return output, nil
}

// KubectlProgram writes an executable kubectl for scripts into a directory and returns its name.
func (s *Server) KubectlProgram(directory string) (string, error) {
	kubeconfig, err := s.WriteKubeconfig(adminToken)
	if err != nil {
		return "", err
	}
	program := filepath.Join(directory, "kubectl")
	text := fmt.Sprintf("#!/bin/sh\nexec '%s' kubectl '--kubeconfig=%s' \"$@\"\n", s.program, kubeconfig)
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		return "", fmt.Errorf("write kubectl: %w", err)
	}
	return program, nil
}

// RunController runs the named Kubernetes controller until the test ends.
func (s *Server) RunController(t *testing.T, name string) {
	t.Helper()
	kubeconfig, err := s.WriteAdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.run(t, "kube-controller-manager", "--kubeconfig="+kubeconfig, "--controllers="+name,
		"--leader-elect=false", "--secure-port=0"); err != nil {
		t.Fatal(err)
	}
}

// Write is a write request to the API server.
type Write struct {
	User, Verb, Resource, Subresource, Namespace, Name string
	// Code is the HTTP status (RFC 9110, section 15).
	Code int
}

// Writes returns all write requests since the start, ordered by completion.
func (s *Server) Writes() ([]Write, error) {
	file, err := os.Open(s.file("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	var writes []Write
	for decoder := json.NewDecoder(file); ; {
		var event auditv1.Event
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return writes, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		write := Write{User: event.User.Username, Verb: event.Verb}
		if event.ResponseStatus != nil {
			write.Code = int(event.ResponseStatus.Code)
		}
		if object := event.ObjectRef; object != nil {
			write.Resource, write.Subresource = object.Resource, object.Subresource
			write.Namespace, write.Name = object.Namespace, object.Name
		}
		writes = append(writes, write)
	}
}
