// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

type certificate struct {
	pair  tls.Certificate
	names []*resource.Hostname
}

func newCertificate(r *resource.Certificate) (*certificate, error) {
	pair, err := tls.X509KeyPair(r.GetChain(), r.GetKey())
	if err != nil {
		return nil, err
	}
	c := &certificate{pair: pair}
	for _, name := range pair.Leaf.DNSNames {
		hostname := &resource.Hostname{Name: strings.ToLower(strings.TrimSuffix(name, "."))}
		if suffix, ok := strings.CutPrefix(hostname.Name, "*."); ok {
			hostname.Name, hostname.Wildcard = suffix, resource.Hostname_ONE_LABEL
		}
		c.names = append(c.names, hostname)
	}
	return c, nil
}

func (l *listener) tunnels() bool { return plan.Tunnels(l.resource) }

func (b *builder) makeListeners() {
	others := b.isTLSChanged() || isKindChanged(b, (*resource.Resource).GetSharedSecret)
	b.areListenersChanged = isKindChanged(b, (*resource.Resource).GetListener)
	b.table.listeners = rebuildEach(b, others, b.old.listeners, (*resource.Resource).GetListener,
		func(r *resource.Resource) (built[*listener], error) {
			found, err := b.makeListener(r)
			if found.value != b.old.listeners[r.GetName()].value {
				b.areListenersChanged = true
			}
			return found, err
		})
}

func (b *builder) makeListener(r *resource.Resource) (built[*listener], error) {
	// Certificates of other objects are served without a missing one. Without any authority no client
	// certificate is valid.
	var absent error
	parts := make([]any, 0, 2)
	var certificates []*certificate
	for _, name := range r.GetListener().GetCertificates() {
		certificate, ok := b.table.certificates[name]
		if !ok {
			absent = missing("certificate", name)
			continue
		}
		certificates = append(certificates, certificate.value)
		parts = append(parts, certificate.value)
	}
	var authorities []*upstream.Authority
	for _, name := range r.GetListener().GetClientValidation().GetCertificateAuthorities() {
		authority, ok := b.table.authorities[name]
		if !ok {
			absent = missing("certificate authority", name)
			continue
		}
		authorities = append(authorities, authority.value)
		parts = append(parts, authority.value)
	}
	parts = append(parts, b.table.secrets)
	made, err := reuse(b.old.listeners, r, parts, func() (*listener, error) {
		number, err := plan.PortNumber(r.GetListener().GetTargetPort())
		if err != nil {
			return nil, err
		}
		l := &listener{name: r.GetName(), resource: r.GetListener(), number: number, metrics: b.metrics.listener(r.GetName())}
		switch l.resource.GetProtocol() {
		case resource.Listener_HTTP, resource.Listener_TLS_PASSTHROUGH:
			return l, nil
		case resource.Listener_HTTPS, resource.Listener_TLS_TERMINATE:
			l.tls, err = b.serverTLS(l, certificates, authorities)
			return l, err
		default:
			return nil, fmt.Errorf("protocol %v is not known", l.resource.GetProtocol())
		}
	})
	return made, cmp.Or(err, absent)
}

func (b *builder) serverTLS(l *listener, certificates []*certificate, authorities []*upstream.Authority) (*tls.Config, error) {
	config := &tls.Config{
		// Without certificates crypto/tls sends the alert unrecognized_name.
		GetCertificate: choose(certificates),
	}
	if l.resource.GetProtocol() == resource.Listener_HTTPS {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	if err := setPolicy(config, l.resource.GetTlsPolicy()); err != nil {
		return nil, err
	}
	info := "session tickets of " + l.name
	if validation := l.resource.GetClientValidation(); validation != nil {
		config.ClientCAs = upstream.Pool(authorities)
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if validation.GetAllowInsecureFallback() {
			config.ClientAuth = tls.RequestClientCert
		}
		// Separate keys, because a ticket must not bypass another configuration's client validation.
		info += fmt.Sprintf(" %v", config.ClientAuth)
		for _, authority := range authorities {
			info += fmt.Sprintf(" %x", authority.Digest())
		}
	}
	keys := make([][32]byte, 0, len(b.table.secrets.values))
	for _, secret := range b.table.secrets.values {
		key, err := hkdf.Key(sha256.New, secret, nil, info, 32)
		if err != nil {
			return nil, fmt.Errorf("derive a key for session tickets: %w", err)
		}
		keys = append(keys, [32]byte(key))
	}
	config.SetSessionTicketKeys(keys)
	return config, nil
}

// choose prefers the exact server name, then a wildcard, then the first certificate, each if the client
// supports it.
func choose(certificates []*certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if len(certificates) == 0 {
		return nil
	}
	byName := map[string][]*certificate{}
	for _, c := range certificates {
		for _, name := range c.names {
			key := name.GetName()
			if name.GetWildcard() != resource.Hostname_NONE {
				key = "*." + key
			}
			if !slices.Contains(byName[key], c) {
				byName[key] = append(byName[key], c)
			}
		}
	}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name, _ := match.ServerName(hello.ServerName)
		_, suffix, _ := strings.Cut(name, ".")
		for _, candidates := range [][]*certificate{byName[name], byName["*."+suffix]} {
			for _, candidate := range candidates {
				if len(candidates) == 1 || hello.SupportsCertificate(&candidate.pair) == nil {
					return &candidate.pair, nil
				}
			}
		}
		return &certificates[0].pair, nil
	}
}
