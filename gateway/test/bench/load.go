// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

type benchCase struct {
	name  string
	count int
	// target is the minimum ratio to HAProxy.
	target float64
	load   func(ctx context.Context, w *world, s *subject, count int) error
}

var benchCases = []benchCase{
	{"HTTP/1.1, keep-alive", 20_000, 0.25, func(ctx context.Context, w *world, s *subject, count int) error {
		return w.h2load(ctx, count, fmt.Sprintf("http://%s:%d/shop/cart?item=1", hostname, s.http), s.http, "--h1", "-c32")
	}},
	{"HTTP/1.1 over TLS, keep-alive", 20_000, 0.25, func(ctx context.Context, w *world, s *subject, count int) error {
		return w.h2load(ctx, count, fmt.Sprintf("https://%s:%d/shop/cart?item=1", hostname, s.https), s.https, "--h1", "-c32")
	}},
	{"HTTP/2 over TLS", 20_000, 0.2, func(ctx context.Context, w *world, s *subject, count int) error {
		return w.h2load(ctx, count, fmt.Sprintf("https://%s:%d/shop/cart?item=1", hostname, s.https), s.https, "-c16", "-m8")
	}},
	{"TLS 1.3 handshake", 2_000, 0.9, handshakes},
}

// headers are 11 with Host and User-Agent, which h2load adds.
var headers = []string{
	"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
	"Accept-Encoding: gzip, deflate, br", "Accept-Language: en-GB,en;q=0.5", "Cache-Control: no-cache",
	"Cookie: session=0123456789abcdef0123456789abcdef; theme=dark", "DNT: 1",
	"Referer: https://shop.example.com/", "Sec-Fetch-Mode: navigate", "X-Request-Id: 0123456789abcdef",
}

var succeeded = regexp.MustCompile(`(\d+) total, .* (\d+) succeeded, .*\nstatus codes: (\d+) 2xx`)

func (w *world) h2load(ctx context.Context, count int, target string, port int, arguments ...string) error {
	line := []string{"ip", "netns", "exec", clientSpace, "taskset", "--cpu-list", w.others, "h2load", "-t1",
		"-n", strconv.Itoa(count), "--connect-to", net.JoinHostPort(proxyAddress, strconv.Itoa(port))}
	line = append(line, arguments...)
	for _, header := range headers {
		line = append(line, "-H", header)
	}
	output, err := sh(ctx, append(line, target)...)
	if err != nil {
		return err
	}
	want := strconv.Itoa(count)
	if found := succeeded.FindStringSubmatch(output); found == nil || found[1] != want || found[2] != want || found[3] != want {
		return fmt.Errorf("not all of %d requests to %s succeeded: %s", count, target, output)
	}
	return nil
}

const handshakers = 8

// handshakes uses X25519, because not all proxies support other key exchanges.
func handshakes(ctx context.Context, _ *world, s *subject, count int) error {
	config := &tls.Config{
		ServerName: hostname, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519}, NextProtos: []string{"http/1.1"},
	}
	address := net.JoinHostPort(proxyAddress, strconv.Itoa(s.https))
	var left atomic.Int64
	left.Store(int64(count))
	errs := make(chan error, handshakers)
	for range handshakers {
		go func() {
			errs <- within(clientSpace, func() error {
				for left.Add(-1) >= 0 {
					if err := handshake(ctx, address, config); err != nil {
						return fmt.Errorf("handshake with %s: %w", s.name, err)
					}
				}
				return nil
			})
		}()
	}
	var all error
	for range handshakers {
		all = errors.Join(all, <-errs)
	}
	return all
}

func handshake(ctx context.Context, address string, config *tls.Config) error {
	conn, err := net.DialTimeout("tcp", address, waitTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := tls.Client(conn, config).HandshakeContext(ctx); err != nil {
		return err
	}
	// A reset leaves no socket in TIME_WAIT: a run opens more connections than there are ports.
	return conn.(*net.TCPConn).SetLinger(0)
}

func within(space string, do func() error) error {
	result := make(chan error)
	go func() {
		// The thread is not unlocked, so it ends with its namespace.
		runtime.LockOSThread()
		result <- func() error {
			file, err := unix.Open("/run/netns/"+space, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(file)
			if err := unix.Setns(file, unix.CLONE_NEWNET); err != nil {
				return err
			}
			return do()
		}()
	}()
	return <-result
}

// warm is the part of a round's load that is sent before the first round.
const warm = 0.2

// measure alternates between the proxies and returns the CPU time of a request by case and subject.
func (w *world) measure(ctx context.Context, o options) (figures, error) {
	found := figures{}
	for _, c := range benchCases {
		if !o.cases.MatchString(c.name) {
			continue
		}
		count := max(int(float64(c.count)*o.scale), 100)
		for round := range o.rounds + 1 {
			for i := range subjects {
				s := subjects[(i+round)%len(subjects)]
				if !o.subjects.MatchString(s.name) {
					continue
				}
				if round == 0 {
					if err := c.load(ctx, w, s, max(int(warm*float64(count)), 100)); err != nil {
						return nil, err
					}
					continue
				}
				took, err := w.cost(ctx, c, s, count)
				if err != nil {
					return nil, err
				}
				found.add(c.name, s.name, took)
			}
		}
	}
	return found, nil
}

func (w *world) cost(ctx context.Context, c benchCase, s *subject, count int) (time.Duration, error) {
	before, err := s.process.processorTime()
	if err != nil {
		return 0, err
	}
	if err := c.load(ctx, w, s, count); err != nil {
		return 0, err
	}
	after, err := s.process.processorTime()
	if err != nil {
		return 0, err
	}
	return (after - before) / time.Duration(count), nil
}
