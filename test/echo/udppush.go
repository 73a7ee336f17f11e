// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// delayedPrefix starts a payload that is answered at once and again later.
	delayedPrefix = "later"
	// maxLater and maxPending bound the delayed answers.
	maxLater   = 5 * time.Minute
	maxPending = 1024
)

var pending atomic.Int32

func parseDelay(payload []byte) (time.Duration, bool) {
	words := strings.Fields(string(payload))
	if len(words) < 2 || words[0] != delayedPrefix {
		return 0, false
	}
	wait, err := time.ParseDuration(words[1])
	return wait, err == nil && wait > 0 && wait <= maxLater
}

func scheduleAnswer(wait time.Duration, send func([]byte) error, answer []byte) {
	if pending.Add(1) > maxPending {
		pending.Add(-1)
		return
	}
	time.AfterFunc(wait, func() {
		defer pending.Add(-1)
		_ = send(answer)
	})
}

// push requests an answer at once and one after a delay, then sends again from the same socket. All answers
// must come from the address and from one pod, which must see one client.
func push(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("push", flag.ContinueOnError)
	to := flags.String("to", "", "address:port to send to")
	after := flags.Duration("after", time.Minute, "when the server sends by itself")
	timeout := flags.Duration("timeout", 10*time.Second, "when to give an answer up")
	if err := parse(flags, args); err != nil {
		return err
	}
	connection, err := new(net.Dialer).DialContext(ctx, "udp", *to)
	if err != nil {
		return err
	}
	defer connection.Close()
	var seen []answer
	for _, step := range []struct {
		send, await string
		wait        time.Duration
	}{
		{delayedPrefix + " " + after.String(), delayedPrefix + " " + after.String(), 0},
		{"", delayedPrefix + " " + after.String(), *after},
		{"again", "again", 0},
	} {
		got, err := exchangeOnce(connection, step.send, step.await, step.wait+*timeout)
		if err != nil {
			return fmt.Errorf("after %d answers: %w", len(seen), err)
		}
		seen = append(seen, got)
	}
	if err := json.NewEncoder(stdout).Encode(seen[0]); err != nil {
		return err
	}
	for _, other := range seen[1:] {
		if other != seen[0] {
			return fmt.Errorf("one answer is of %+v, another of %+v", seen[0], other)
		}
	}
	if local := connection.LocalAddr().String(); seen[0].Client != local {
		return fmt.Errorf("the pod saw %s: this client is %s", seen[0].Client, local)
	}
	return nil
}

func exchangeOnce(connection net.Conn, payload, await string, limit time.Duration) (answer, error) {
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return answer{}, err
	}
	if payload != "" {
		if _, err := io.WriteString(connection, payload); err != nil {
			return answer{}, err
		}
	}
	buffer := make([]byte, maxDatagram)
	n, err := connection.Read(buffer)
	if err != nil {
		return answer{}, err
	}
	return parseReply(string(buffer[:n]), await)
}
