// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const batchSize = 64

type floodConfig struct {
	to   netip.AddrPort
	from netip.Prefix
	kind floodKind
	// inner is the destination of packets in the tunnel.
	inner netip.AddrPort
	size  int
	// flows is the number of distinct sources; 0: each packet has a new one.
	flows int
	// rate is in packets per second; 0: unlimited.
	rate     float64
	duration time.Duration
}

type floodReport struct {
	Packets int64   `json:"packets"`
	Seconds float64 `json:"seconds"`
	// CPUSeconds of the sending thread include the packets' whole path between namespaces of one machine.
	CPUSeconds float64 `json:"cpuSeconds"`
	// Failed counts packets that the kernel rejected.
	Failed     int64  `json:"failed"`
	FirstError string `json:"firstError,omitempty"`
}

// flood sends packets with spoofed sources by raw sockets and ignores responses. It requires root and must
// run in networks made for it.
func flood(ctx context.Context, args []string, stdout io.Writer) error {
	config, err := floodFlags(args)
	if err != nil {
		return err
	}
	send, err := batchSender(config.to)
	if err != nil {
		return err
	}
	report := config.run(ctx, send)
	if err := printJSON(stdout, report); err != nil {
		return err
	}
	if report.Packets == 0 {
		return errFailed
	}
	return nil
}

func floodFlags(args []string) (floodConfig, error) {
	var config floodConfig
	flags := flag.NewFlagSet("flood", flag.ContinueOnError)
	to := flags.String("to", "", "address:port to send to")
	from := flags.String("from", "", "network of the made-up sources, such as 203.0.113.224/27")
	kind := flags.String("kind", "syn", "what is sent: "+kindNames())
	inner := flags.String("inner", "", "address:port that packets of the kind tunnel are for (default: that of --to)")
	flags.IntVar(&config.size, "size", 18, "bytes of a datagram's payload")
	flags.IntVar(&config.flows, "flows", 0, "how many sources take turns, the same at each run (0: a new one for each packet)")
	flags.Float64Var(&config.rate, "rate", 1000, "packets per second (0: as many as possible)")
	flags.DurationVar(&config.duration, "duration", 10*time.Second, "how long")
	if err := parse(flags, args); err != nil {
		return config, err
	}
	var err error
	if config.to, err = netip.ParseAddrPort(*to); err != nil {
		return config, fmt.Errorf("--to: %w", err)
	}
	if config.from, err = netip.ParsePrefix(*from); err != nil {
		return config, fmt.Errorf("--from: %w", err)
	}
	config.inner = config.to
	if *inner != "" {
		if config.inner, err = netip.ParseAddrPort(*inner); err != nil {
			return config, fmt.Errorf("--inner: %w", err)
		}
	}
	var known bool
	if config.kind, known = floodKinds[*kind]; !known {
		return config, fmt.Errorf("--kind: there is no %q, only %s", *kind, kindNames())
	}
	if config.from.Addr().Is4() != config.to.Addr().Is4() {
		return config, errors.New("--from and --to are not of one family")
	}
	if config.rate < 0 || config.flows < 0 || config.duration <= 0 || config.size < 0 || config.size > maxPayload {
		return config, fmt.Errorf("rate and flows must not be negative, duration must be positive, size 0 to %d", maxPayload)
	}
	return config, nil
}

const maxPayload = 1200

// batchSender returns a function that sends IP packets and returns the number that the kernel accepted.
func batchSender(to netip.AddrPort) (func([]ipv4.Message) (int, error), error) {
	network := "ip6:255"
	if to.Addr().Is4() {
		network = "ip4:255"
	}
	// Protocol 255 is IPPROTO_RAW: packets include their IP header.
	socket, err := net.ListenPacket(network, "")
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w: be root", err)
	}
	if to.Addr().Is4() {
		raw := ipv4.NewPacketConn(socket)
		return func(batch []ipv4.Message) (int, error) { return raw.WriteBatch(batch, 0) }, nil
	}
	raw := ipv6.NewPacketConn(socket)
	return func(batch []ipv4.Message) (int, error) { return raw.WriteBatch(batch, 0) }, nil
}

func (c floodConfig) run(ctx context.Context, send func([]ipv4.Message) (int, error)) floodReport {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var report floodReport
	batch := make([]ipv4.Message, batchSize)
	for i := range batch {
		batch[i] = ipv4.Message{Buffers: make([][]byte, 1), Addr: &net.IPAddr{IP: c.to.Addr().AsSlice()}}
	}
	packets := c.source()
	start, spent := time.Now(), threadTime()
	end := start.Add(c.duration)
	for now := start; now.Before(end) && ctx.Err() == nil; now = time.Now() {
		due := batchSize
		if c.rate > 0 {
			due = min(due, int(c.rate*now.Sub(start).Seconds())-int(report.Packets+report.Failed))
		}
		if due <= 0 {
			sleepUntil(ctx, now.Add(time.Millisecond))
			continue
		}
		for i := range due {
			batch[i].Buffers[0] = packets()
		}
		count, err := send(batch[:due])
		report.Packets += int64(max(count, 0))
		if err != nil {
			report.Failed++
			if report.FirstError == "" {
				report.FirstError = err.Error()
			}
		}
	}
	report.CPUSeconds = (threadTime() - spent).Seconds()
	report.Seconds = time.Since(start).Seconds()
	return report
}

// threadTime returns the CPU time of the calling thread (clock_gettime(2), which cannot fail here).
func threadTime() time.Duration {
	var spent unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent)
	return time.Duration(spent.Nano())
}

func (c floodConfig) source() func() []byte {
	var seed [32]byte
	if c.flows == 0 {
		binary.LittleEndian.PutUint64(seed[:], uint64(time.Now().UnixNano()))
		random := rand.NewChaCha8(seed)
		return func() []byte { return c.packet(random) }
	}
	// The seed is constant so that flows known from a previous run are reused.
	random := rand.NewChaCha8(seed)
	packets := make([][]byte, c.flows)
	for i := range packets {
		packets[i] = c.packet(random)
	}
	next := -1
	return func() []byte {
		next = (next + 1) % len(packets)
		return packets[next]
	}
}

func (c floodConfig) packet(random *rand.ChaCha8) []byte {
	address := c.from.Masked().Addr().AsSlice()
	var bits [16]byte
	binary.LittleEndian.PutUint64(bits[:8], random.Uint64())
	binary.LittleEndian.PutUint64(bits[8:], random.Uint64())
	for i := range address {
		// The bits of this byte outside of the prefix.
		open := min(max((i+1)*8-c.from.Bits(), 0), 8)
		address[i] |= bits[i] & byte(1<<open-1)
	}
	from, _ := netip.AddrFromSlice(address)
	port := 1024 + random.Uint64()%(65536-1024)
	e := socketPair{from: netip.AddrPortFrom(from, uint16(port)), to: c.to}
	return c.kind(floodPacket{socketPair: e, inner: c.inner, size: c.size, random: random.Uint64()})
}
