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
	// relayAddress is where the process listens that is a relay of EndpointSlices.
	relayAddress = "MILLRACE_TEST_RELAY"
	// relayDirectory has its certificate, and that of its authority for agents.
	relayDirectory = "MILLRACE_TEST_RELAY_CERTIFICATES"
	// agentRelay is the URL of relays, in the process that is the agent.
	agentRelay = "MILLRACE_TEST_AGENT_RELAY"
)

// relays are where a world's agents ask.
type relays struct{ address, directory string }

// environment is what an agent's process has of it.
func (r *relays) environment() []string {
	if r == nil {
		return nil
	}
	return []string{agentRelay + "=https://" + r.address, relayDirectory + "=" + r.directory}
}

// installRelays has agents that are started from now on ask relays, none of which runs yet.
func (w *world) installRelays() {
	w.t.Helper()
	w.relays = &relays{address: fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(w.t)), directory: w.t.TempDir()}
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	controlplane.Must(w.t, err)
	for name, text := range map[string][]byte{"ca.crt": certificate, "tls.crt": certificate, "tls.key": key, "token": []byte("unchecked")} {
		controlplane.Must(w.t, os.WriteFile(filepath.Join(w.relays.directory, name), text, 0o600))
	}
}

// startRelay starts a relay, with the agent's rights.
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

// runRelay is the relay of cmd/liveapi. Who asks it is not asked for: that is the aggregated API's,
// and tested there.
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
