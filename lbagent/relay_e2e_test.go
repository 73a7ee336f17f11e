// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	wire "github.com/millrace-lb/millrace/api/relay"
	"github.com/millrace-lb/millrace/liveapi/relay"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// relayAddress is the listen address of the relay's process.
	relayAddress = "MILLRACE_TEST_RELAY"
	// relayDirectory contains its certificate, and the CA certificate for agents.
	relayDirectory = "MILLRACE_TEST_RELAY_CERTIFICATES"
	// agentRelay is the URL of relays in the agent's process.
	agentRelay = "MILLRACE_TEST_AGENT_RELAY"
)

type relays struct{ address, directory string }

func (r *relays) environment() []string {
	if r == nil {
		return nil
	}
	return []string{agentRelay + "=https://" + r.address, relayDirectory + "=" + r.directory}
}

// installRelays configures relays for agents started from now on. None runs yet.
func (w *world) installRelays() {
	w.t.Helper()
	w.relays = &relays{address: fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(w.t)), directory: w.t.TempDir()}
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	controlplane.Must(w.t, err)
	for name, text := range map[string][]byte{"ca.crt": certificate, "tls.crt": certificate, "tls.key": key, "token": []byte("unchecked")} {
		controlplane.Must(w.t, os.WriteFile(filepath.Join(w.relays.directory, name), text, 0o600))
	}
}

func (w *world) startRelay() *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), relayAddress+"="+w.relays.address, relayDirectory+"="+w.relays.directory, "KUBECONFIG="+w.kubeconfig)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	controlplane.Must(w.t, cmd.Start())
	w.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// runRelay runs the relay of cmd/liveapi without its authorization, which is tested with the aggregated API.
func runRelay() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	logger := logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)).WithName("relay")
	log := &relay.Log{}
	mux := http.NewServeMux()
	mux.Handle(wire.PathEndpointSlices, relay.NewHandler(ctx, log, logger))
	server := &http.Server{Addr: os.Getenv(relayAddress), Handler: mux, ReadHeaderTimeout: time.Second}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return relay.Copy(ctx, config, log, logger) })
	group.Go(func() error {
		directory := os.Getenv(relayDirectory)
		return server.ListenAndServeTLS(filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key"))
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return group.Wait()
}
