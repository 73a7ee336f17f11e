// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// intermediateSuites are the TLS 1.2 suites of Mozilla's "Server Side TLS" 5.7, without DHE, which crypto/tls
// lacks.
var intermediateSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// oldSuites are the additional suites of Mozilla's old configuration.
var oldSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,
	tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_RSA_WITH_AES_128_CBC_SHA256,
	tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA,
}

func setPolicy(config *tls.Config, policy resource.Listener_TLSPolicy) error {
	config.MinVersion, config.CipherSuites = tls.VersionTLS12, intermediateSuites
	switch policy {
	case resource.Listener_INTERMEDIATE:
	case resource.Listener_MODERN:
		config.MinVersion = tls.VersionTLS13
	case resource.Listener_OLD:
		config.MinVersion = tls.VersionTLS10
		config.CipherSuites = append(intermediateSuites[:len(intermediateSuites):len(intermediateSuites)], oldSuites...)
	default:
		return fmt.Errorf("TLS policy %v is not known", policy)
	}
	return nil
}
