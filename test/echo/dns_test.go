// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
)

// TestDNS asks with the standard library's resolver.
func TestDNS(t *testing.T) {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveDNS(ctx, socket, func(_ context.Context, namespace, name string) ([]netip.Addr, error) {
			switch namespace + "/" + name {
			case "default/echo":
				return []netip.Addr{netip.MustParseAddr("198.19.0.1"), netip.MustParseAddr("2001:db8::1")}, nil
			case "default/broken":
				return nil, errors.New("the API server is away")
			}
			return nil, errNotFound
		})
	}()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", socket.LocalAddr().String())
	}}
	for network, want := range map[string]string{"ip4": "[198.19.0.1]", "ip6": "[2001:db8::1]"} {
		got, err := resolver.LookupNetIP(t.Context(), network, "Echo.default.svc.cluster.local.")
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v; want %s", network, got, err, want)
		}
	}
	for name, notFound := range map[string]bool{
		"other.default.svc.cluster.local.": true, "a.b.default.svc.cluster.local.": true, "example.com.": true,
		"broken.default.svc.cluster.local.": false,
	} {
		_, err := resolver.LookupNetIP(t.Context(), "ip4", name)
		if dnsErr := (*net.DNSError)(nil); !errors.As(err, &dnsErr) || dnsErr.IsNotFound != notFound {
			t.Errorf("%s: %v, not found is to be %t", name, err, notFound)
		}
	}
	cancel()
	socket.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
