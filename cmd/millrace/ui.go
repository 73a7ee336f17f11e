// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui"
)

func uiCommand(env environment, config *cluster.Config) *cobra.Command {
	var port uint16
	command := &cobra.Command{
		Use:   "ui",
		Short: "Serve a web page with routers, nodes, Services and pods",
		Long: "Serve a web page on this machine with routers, nodes, Services and pods, their rates, drops, BGP and BFD\n" +
			"sessions, and problems. It uses the permissions of your kubeconfig, and changes nothing.\n\n" +
			"The printed address contains a random token. Do not share it.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return serveUI(command.Context(), env, *config, port)
		},
	}
	command.Flags().Uint16Var(&port, "port", 0, "TCP `port` on 127.0.0.1 (default: any free port)")
	registerCompletion(command, "port", fixed())
	return command
}

// shutdownTimeout limits open requests after the command was interrupted.
const shutdownTimeout = 3 * time.Second

func serveUI(ctx context.Context, env environment, config cluster.Config, port uint16) error {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("serve the page: %w; see --port", err)
	}
	defer listener.Close()
	source := newUISource(env, config)
	token := ui.NewToken()
	address := listener.Addr().String()
	_, given, _ := net.SplitHostPort(address)
	handler, err := ui.New(source, ui.Options{Token: token, Hosts: []string{address, "localhost:" + given}})
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return source.run(running) })
	group.Go(func() error {
		select {
		case <-source.ready:
		case <-running.Done():
			return nil
		}
		if _, err := fmt.Fprintf(env.stdout, "http://%s/#token=%s\n", address, token); err != nil {
			return err
		}
		fmt.Fprintln(env.stderr, "Open this address in a browser on this machine. Interrupt ends the page.")
		return serve(running, listener, handler)
	})
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// serve waits up to shutdownTimeout for open requests after ctx is done.
func serve(ctx context.Context, listener net.Listener, handler *ui.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	handler.Run(ctx)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ending); err != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}
