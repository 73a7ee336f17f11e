// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

type webConfig struct {
	to []netip.AddrPort
	// host serves requests and WebSockets, grpcHost gRPC streams.
	host, grpcHost string
	roots          *x509.CertPool
	// rate is per second and kind; the streams of a kind share it.
	rate    float64
	streams int
	timeout time.Duration
}

// web sends requests of all kinds with TLS at a rate and keeps streams open. It prints a report when each
// kind has an answer, one per line "check" on stdin once earlier requests have ended, and one at the end of
// stdin.
func web(ctx context.Context, args []string, stdout io.Writer) error {
	return webUntil(ctx, args, os.Stdin, stdout)
}

func webUntil(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	config, err := webFlags(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rounds := newRounds()
	visitors := newVisitors(config, rounds)
	if err := visitors.begin(ctx); err != nil {
		return err
	}
	encoder := json.NewEncoder(stdout)
	if err := encoder.Encode(rounds.report()); err != nil {
		return err
	}
	commands := readLines(ctx, stdin)
	for {
		select {
		case line, more := <-commands:
			if more && line == "check" {
				if err := encoder.Encode(rounds.report()); err != nil {
					return err
				}
				continue
			}
			if more {
				return fmt.Errorf("no command %q: want \"check\"", line)
			}
		case <-ctx.Done():
		}
		cancel()
		visitors.wait()
		return encoder.Encode(rounds.report())
	}
}

func webFlags(args []string) (webConfig, error) {
	config := webConfig{roots: x509.NewCertPool()}
	flags := flag.NewFlagSet("web", flag.ContinueOnError)
	to := flags.String("to", "", "address:port to connect to; several with commas between share the connections")
	flags.StringVar(&config.host, "host", "", "host for requests and WebSockets")
	flags.StringVar(&config.grpcHost, "grpc-host", "", "host for streams of gRPC")
	authorities := flags.String("ca", "", "certificates to trust, in PEM")
	flags.Float64Var(&config.rate, "rate", 40, "how many of each of the five kinds per second")
	flags.IntVar(&config.streams, "streams", 8, "how many streams of each kind to keep open")
	flags.DurationVar(&config.timeout, "timeout", 15*time.Second, "when to give a request up")
	if err := parse(flags, args); err != nil {
		return config, err
	}
	for _, word := range words(*to) {
		address, err := netip.ParseAddrPort(word)
		if err != nil {
			return config, fmt.Errorf("--to: %w", err)
		}
		config.to = append(config.to, address)
	}
	switch {
	case len(config.to) == 0 || config.host == "" || config.grpcHost == "":
		return config, errors.New("--to, --host and --grpc-host must be given")
	case config.rate <= 0 || config.streams < 1 || config.timeout <= 0:
		return config, errors.New("rate, streams and timeout must be positive")
	case !config.roots.AppendCertsFromPEM([]byte(*authorities)):
		return config, errors.New("--ca has no certificate")
	}
	return config, nil
}

type webClient struct {
	config            webConfig
	rounds            *rounds
	running, underway sync.WaitGroup
	dialled           atomic.Int64
}

func newVisitors(config webConfig, rounds *rounds) *webClient {
	return &webClient{config: config, rounds: rounds}
}

func (v *webClient) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	next := v.config.to[int(v.dialled.Add(1))%len(v.config.to)]
	return (&net.Dialer{}).DialContext(ctx, "tcp", next.String())
}

func (v *webClient) tls() *tls.Config {
	return &tls.Config{RootCAs: v.config.roots, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
}

// begin sends one request of each kind and opens all streams before the rates start.
func (v *webClient) begin(ctx context.Context) error {
	requesters := v.requesters()
	for kind, send := range requesters {
		if _, err := limited(ctx, v.config.timeout, func(ctx context.Context) (string, error) { return send(ctx, 0) }); err != nil {
			return fmt.Errorf("the first request of kind %s: %w", kind, err)
		}
	}
	opened := map[string][]*stream{}
	openers := v.openers()
	for kind, open := range openers {
		for range v.config.streams {
			first, err := limited(ctx, v.config.timeout, open)
			if err != nil {
				return fmt.Errorf("the first stream of kind %s: %w", kind, err)
			}
			opened[kind] = append(opened[kind], first)
		}
	}
	for kind, send := range requesters {
		v.running.Go(func() { v.visit(ctx, kind, send) })
	}
	for kind, open := range openers {
		for i, first := range opened[kind] {
			kept := &persistentStream{visitors: v, kind: kind, open: open, stream: first}
			v.running.Go(func() { kept.run(ctx, i) })
		}
	}
	return nil
}

func (v *webClient) wait() {
	v.running.Wait()
	v.underway.Wait()
}

// visit sends requests at the rate until ctx ends, without waiting for answers.
func (v *webClient) visit(ctx context.Context, kind string, send requester) {
	plan := schedule{rate: v.config.rate}
	for start, i := time.Now(), 0; sleepUntil(ctx, plan.due(start, i)); i++ {
		begun := v.rounds.begin(kind, plan.due(start, i))
		v.underway.Go(func() {
			pod, err := limited(context.WithoutCancel(ctx), v.config.timeout, func(ctx context.Context) (string, error) {
				return send(ctx, i)
			})
			begun.end(pod, err)
		})
	}
}

func limited[T any](ctx context.Context, limit time.Duration, step func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return step(ctx)
}
