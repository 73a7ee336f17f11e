// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestRequests(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	requests := make(chan string, 1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			requests <- strings.TrimSpace(line)
			_ = conn.Close()
		}
	}()
	for line, want := range map[string]string{
		"drops --follow": `{"command":"drops","follow":true}`,
		"top --interval=2s --vip=203.0.113.1 --namespace=shop": `{"command":"top","interval":2000000000,"addresses":["203.0.113.1"],"namespace":"shop"}`,
		"trace 198.51.100.1:40000 203.0.113.1:80 --midstream": `{"command":"trace","packet":{"source":"198.51.100.1:40000",` +
			`"destination":"203.0.113.1:80","protocol":"tcp","midstream":true}}`,
		"vips":                                  `{"command":"vips"}`,
		"vips ::ffff:203.0.113.1":               `{"command":"vips","addresses":["203.0.113.1"]}`,
		"bgp peers":                             `{"command":"bgp peers"}`,
		"bgp routes":                            `{"command":"bgp routes"}`,
		"duplicates 2001:db8::1":                `{"command":"duplicates","addresses":["2001:db8::1"]}`,
		"history --service=shop/web --last=100": `{"command":"history","history":{"service":"shop/web","last":100}}`,
	} {
		var out bytes.Buffer
		cmd := command(noEnvironment, strings.NewReader(""), &out, &out)
		cmd.SetArgs(append(strings.Fields(line), "--socket="+socket))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got := <-requests; got != want {
			t.Errorf("%s sends %s, want %s", line, got, want)
		}
	}
}
