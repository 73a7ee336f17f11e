// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sizePrefix starts a datagram "size N …", which is answered with N unfragmented bytes.
	sizePrefix = "size "
	// tooBig is the answer if the path MTU is known to be too small.
	tooBig       = "too big"
	shortAnswer  = 64
	probeTimeout = time.Second
)

type mtuReport struct {
	Up   []mtuResult `json:"up"`
	Down []mtuResult `json:"down"`
}

type mtuResult struct {
	Size     int  `json:"size"`
	Answered bool `json:"answered"`
	Refused  bool `json:"refused"`
	Lost     int  `json:"lost"`
}

// mtu probes payload sizes in both directions without fragmentation. It repeats each size until an answer,
// a path MTU error or the timeout, and fails on a timeout.
func mtu(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("mtu", flag.ContinueOnError)
	to := flags.String("to", "", "address:port that answers")
	from := flags.String("from", "", "own address (default: the kernel's choice)")
	up := flags.String("up", "", "sizes of payload to send, with commas between")
	down := flags.String("down", "", "sizes of payload to ask for, with commas between")
	timeout := flags.Duration("timeout", 10*time.Second, "when to give one size up")
	if err := parse(flags, args); err != nil {
		return err
	}
	dialer := net.Dialer{}
	if *from != "" {
		own, err := netip.ParseAddr(*from)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, 0))
	}
	connection, err := dialer.DialContext(ctx, "udp", *to)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := setDontFragment(connection.(*net.UDPConn), strings.HasPrefix(*to, "["), true); err != nil {
		return err
	}
	report := mtuReport{}
	probe := sizeProbe{connection: connection, timeout: *timeout}
	if report.Up, err = probe.all(ctx, *up, func(size int) string { return sizeRequest(shortAnswer, size) }); err != nil {
		return err
	}
	if report.Down, err = probe.all(ctx, *down, func(size int) string { return sizeRequest(size, shortAnswer) }); err != nil {
		return err
	}
	if err := printJSON(stdout, report); err != nil {
		return err
	}
	for _, result := range append(report.Up, report.Down...) {
		if !result.Answered && !result.Refused {
			return errFailed
		}
	}
	return nil
}

func sizeRequest(answer, length int) string {
	request := sizePrefix + strconv.Itoa(answer) + " "
	return request + strings.Repeat("x", max(0, length-len(request)))
}

type sizeProbe struct {
	connection net.Conn
	timeout    time.Duration
}

func (p sizeProbe) all(ctx context.Context, list string, request func(size int) string) ([]mtuResult, error) {
	var results []mtuResult
	for _, word := range words(list) {
		size, err := strconv.Atoi(word)
		if err != nil || size < shortAnswer {
			return nil, fmt.Errorf("size %q: want a number, at least %d", word, shortAnswer)
		}
		results = append(results, p.try(ctx, size, request(size)))
	}
	return results, nil
}

func (p sizeProbe) try(ctx context.Context, size int, request string) mtuResult {
	result := mtuResult{Size: size}
	end := time.Now().Add(p.timeout)
	buffer := make([]byte, maxDatagram)
	for ctx.Err() == nil && time.Now().Before(end) {
		// Socket errors appear at the next call.
		_, err := io.WriteString(p.connection, request)
		var n int
		if err == nil {
			_ = p.connection.SetReadDeadline(time.Now().Add(probeTimeout))
			n, err = p.connection.Read(buffer)
		}
		switch {
		case errors.Is(err, unix.EMSGSIZE), err == nil && string(buffer[:n]) == tooBig:
			result.Refused = true
			return result
		case err == nil:
			result.Answered = true
			return result
		}
		result.Lost++
	}
	return result
}

func setDontFragment(connection *net.UDPConn, ipv6, on bool) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_WANT
	if ipv6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	if on {
		// The value is equal in both families.
		value = unix.IP_PMTUDISC_DO
	}
	raw, err := connection.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(socket uintptr) {
		failure = unix.SetsockoptInt(int(socket), level, option, value)
	})
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("set whether datagrams may be fragmented: %w", err)
	}
	return nil
}

func parseSize(payload []byte) (size int, found bool) {
	rest, found := strings.CutPrefix(string(payload), sizePrefix)
	if !found {
		return 0, false
	}
	number, _, _ := strings.Cut(rest, " ")
	size, err := strconv.Atoi(number)
	return size, err == nil && size >= 0 && size <= maxDatagram
}

func answerOfSize(connection *net.UDPConn, ipv6 bool, size int, send func([]byte) error) {
	if err := setDontFragment(connection, ipv6, true); err != nil {
		return
	}
	err := send(make([]byte, size))
	if errors.Is(err, syscall.EMSGSIZE) {
		err = send([]byte(tooBig))
	}
	_ = errors.Join(err, setDontFragment(connection, ipv6, false))
}
