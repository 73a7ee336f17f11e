// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func TestTLSPolicy(t *testing.T) {
	clients := map[string]*tls.Config{
		"TLS 1.3": {MinVersion: tls.VersionTLS13},
		"GCM":     {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}},
		"CBC":     {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}},
		"TLS 1.0": {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
	}
	for policy, taken := range map[resource.Listener_TLSPolicy][]string{
		resource.Listener_MODERN:       {"TLS 1.3"},
		resource.Listener_INTERMEDIATE: {"TLS 1.3", "GCM"},
		resource.Listener_OLD:          {"TLS 1.3", "GCM", "CBC", "TLS 1.0"},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			port, authority := freePort(t), newCA(t)
			ended := bytesListener("lt", port, resource.Listener_TLS_TERMINATE, "end.example.com", "c")
			listener := tlsListener("l", port, hostname("a.example.com"), "c")
			listener.GetListener().TlsPolicy, ended.GetListener().TlsPolicy = policy, policy
			start(t, nil, authority.resource("c", "a.example.com", "end.example.com"), listener, ended)
			wanted := map[string]bool{}
			for _, name := range taken {
				wanted[name] = true
			}
			for name, config := range clients {
				for _, host := range []string{"a.example.com", "end.example.com"} {
					config := config.Clone()
					config.RootCAs, config.ServerName = authority.pool(), host
					conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 20 * time.Second}, "tcp", client127(port), config)
					if (err == nil) != wanted[name] {
						t.Errorf("%s, %s: error %v; want a connection: %v", host, name, err, wanted[name])
					}
					if err == nil {
						_ = conn.Close()
					}
				}
			}
		})
	}
}
