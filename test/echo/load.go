// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type schedule struct {
	requests, concurrency int
	// rate is in requests per second; 0: unlimited.
	rate float64
}

func (s schedule) due(start time.Time, i int) time.Time {
	if s.rate == 0 {
		return time.Time{}
	}
	return start.Add(time.Duration(float64(i) / s.rate * float64(time.Second)))
}

type scheduleFlags struct {
	requests, concurrency int
	rate                  float64
	duration              time.Duration
}

func addSchedule(flags *flag.FlagSet, countFlag string, requests int) *scheduleFlags {
	s := &scheduleFlags{}
	flags.IntVar(&s.requests, countFlag, requests, "how many to send")
	flags.IntVar(&s.concurrency, "concurrency", 20, "how many at once at most")
	flags.Float64Var(&s.rate, "rate", 0, "how many per second to start (0: as fast as answers come)")
	flags.DurationVar(&s.duration, "duration", 0, "how long to go on at --rate, instead of a number")
	return s
}

func (s scheduleFlags) schedule() (schedule, error) {
	plan := schedule{requests: s.requests, concurrency: s.concurrency, rate: s.rate}
	if s.duration > 0 {
		if s.rate <= 0 {
			return plan, errors.New("--duration needs a --rate")
		}
		plan.requests = int(s.rate * s.duration.Seconds())
	}
	if plan.requests < 1 || plan.concurrency < 1 || plan.rate < 0 {
		return plan, errors.New("number, concurrency and rate must be positive")
	}
	return plan, nil
}

// drive makes the requests of a schedule and records their results. It starts no more once ctx ends.
func drive(ctx context.Context, plan schedule, request func(context.Context, int) (answer, error)) *recorder {
	start := time.Now()
	results := newRecorder(start)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(plan.concurrency, plan.requests) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= plan.requests || !sleepUntil(ctx, plan.due(start, i)) {
					return
				}
				begin := plan.due(start, i)
				if begin.IsZero() {
					begin = time.Now()
				}
				from, err := request(context.WithoutCancel(ctx), i)
				if err != nil {
					results.failure(begin, err)
				} else {
					results.success(from, time.Since(begin))
				}
			}
		})
	}
	workers.Wait()
	return results
}

// sleepUntil returns false if ctx ended first.
func sleepUntil(ctx context.Context, due time.Time) bool {
	if wait := time.Until(due); !due.IsZero() && wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

func load(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	url := flags.String("url", "", "where to send them")
	keepAlive := flags.Bool("keepalive", true, "reuse connections")
	timeout := flags.Duration("timeout", 5*time.Second, "when to give a request up")
	connect := flags.String("connect", "", "host:port to connect to, whatever the URL says")
	ports := flags.String("ports", "", "FIRST-LAST of the own ports to connect from (default: the kernel's choice)")
	authorities := flags.String("ca", "", "certificates to trust, in PEM (default: those of the system)")
	forwarded := flags.Bool("forwarded", false, "count the clients that a proxy names, and not those that pods see")
	planned := addSchedule(flags, "requests", 1000)
	if err := parse(flags, args); err != nil {
		return err
	}
	plan, err := planned.schedule()
	if err != nil {
		return err
	}
	client := newClient(plan.concurrency, *keepAlive)
	client.Timeout = *timeout
	if err := direct(client, *connect, *authorities, *ports); err != nil {
		return err
	}
	results := drive(ctx, plan, func(ctx context.Context, _ int) (answer, error) {
		from, err := getAnswer(ctx, client, *url)
		if *forwarded {
			from.Client = net.JoinHostPort(from.Forwarded, "0")
		}
		return from, err
	})
	return results.finish(stdout)
}

// direct makes a client connect to an address, from a range of local ports, with the given CAs.
func direct(client *http.Client, address, authorities, ports string) error {
	transport, ok := client.Transport.(*http.Transport)
	if !ok {
		return fmt.Errorf("the client has a %T", client.Transport)
	}
	dialer := &net.Dialer{}
	if ports != "" {
		var err error
		if dialer.Control, err = fromPorts(ports); err != nil {
			return err
		}
	}
	if address != "" || ports != "" {
		transport.DialContext = func(ctx context.Context, network, host string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, cmp.Or(address, host))
		}
	}
	if authorities != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(authorities)) {
			return errors.New("--ca has no certificate")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	return nil
}

// fromPorts makes the kernel select the local port within FIRST-LAST (IP_LOCAL_PORT_RANGE, Linux 6.3),
// which must be inside net.ipv4.ip_local_port_range.
func fromPorts(ports string) (func(network, address string, raw syscall.RawConn) error, error) {
	var first, last uint16
	if _, err := fmt.Sscanf(ports, "%d-%d", &first, &last); err != nil || first == 0 || first > last {
		return nil, fmt.Errorf("--ports %q: want FIRST-LAST", ports)
	}
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(socket uintptr) {
			failed = unix.SetsockoptInt(int(socket), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(last)<<16|int(first))
		})
		return errors.Join(err, failed)
	}, nil
}

func newClient(connections int, keepAlive bool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives:   !keepAlive,
		MaxIdleConnsPerHost: connections,
	}}
}

func getAnswer(ctx context.Context, client *http.Client, url string) (answer, error) {
	var reached progress
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, reached.trace()), http.MethodGet, url, nil)
	if err != nil {
		return answer{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", reached.String(), err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, fmt.Errorf("read answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("answer is %s", response.Status)
	}
	var from answer
	if err := json.Unmarshal(body, &from); err != nil {
		return answer{}, fmt.Errorf("decode answer %q: %w", body, err)
	}
	return from, nil
}
