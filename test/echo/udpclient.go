// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// udp sends datagrams, each from its own socket and thus as a new flow. It does not retransmit.
func udp(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("udp", flag.ContinueOnError)
	to := flags.String("to", "", "address:port to send them to")
	size := flags.Int("size", 16, "bytes of payload, at least")
	timeout := flags.Duration("timeout", 2*time.Second, "when to give an answer up")
	planned := addSchedule(flags, "count", 100)
	if err := parse(flags, args); err != nil {
		return err
	}
	plan, err := planned.schedule()
	if err != nil {
		return err
	}
	results := drive(ctx, plan, func(ctx context.Context, i int) (answer, error) {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		return exchange(ctx, *to, payloadOf(i, *size))
	})
	return results.finish(stdout)
}

func payloadOf(i, size int) string {
	word := fmt.Sprintf("datagram-%d-", i)
	return word + strings.Repeat("x", max(0, size-len(word)))
}

func exchange(ctx context.Context, to, payload string) (answer, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "udp", to)
	if err != nil {
		return answer{}, err
	}
	defer connection.Close()
	deadline, _ := ctx.Deadline()
	if err := connection.SetDeadline(deadline); err != nil {
		return answer{}, err
	}
	if _, err := io.WriteString(connection, payload); err != nil {
		return answer{}, err
	}
	buffer := make([]byte, maxDatagram)
	n, err := connection.Read(buffer)
	if err != nil {
		return answer{}, err
	}
	return parseReply(string(buffer[:n]), payload)
}

func parseReply(reply, payload string) (answer, error) {
	words := strings.SplitN(reply, " ", 4)
	if len(words) != 4 || words[3] != payload {
		return answer{}, fmt.Errorf("reply %.80q does not repeat the payload %.40q", reply, payload)
	}
	return answer{identity: identity{Pod: words[0], Node: words[1]}, Client: words[2]}, nil
}
