// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"net/netip"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// session implements session persistence. The token has the endpoint and the start, encrypted with a key
// shared by all proxies of the owner, so that clients can neither read nor modify it.
type session struct {
	header    bool
	name      string
	lifetime  time.Duration
	permanent bool
	path      string
}

type backendID [8]byte

func newBackendID(name string) backendID {
	digest := sha256.Sum256([]byte(name))
	return backendID(digest[:8])
}

// Plaintext layout, big endian: backend ID (8 bytes), address (16), port (2), start in Unix seconds (8).
const (
	offsetAddress = 8
	offsetPort    = offsetAddress + 16
	offsetBegan   = offsetPort + 2
	lengthOpen    = offsetBegan + 8
	lengthSealed  = lengthOpen + nonce + tag
	nonce, tag    = 12, 16
)

func newSession(r *resource.SessionPersistence) *session {
	if r == nil {
		return nil
	}
	s := &session{
		header:    r.GetKind() == resource.SessionPersistence_HEADER,
		name:      r.GetSessionName(),
		lifetime:  time.Duration(r.GetAbsoluteTimeout()) * time.Millisecond,
		permanent: r.GetPermanent(),
		path:      cmp.Or(r.GetPath(), "/"),
	}
	if s.name == "" {
		s.name = "millrace-session"
	}
	return s
}

type sticky struct {
	backend  *weightedBackend
	endpoint *balance.Endpoint
	began    time.Time
	// old is set if the token was not sealed with the first key, and expires soon.
	old bool
}

func seal(key cipher.AEAD, backend backendID, endpoint netip.AddrPort, began time.Time) string {
	var open [lengthOpen]byte
	copy(open[:], backend[:])
	address := endpoint.Addr().As16()
	copy(open[offsetAddress:], address[:])
	binary.BigEndian.PutUint16(open[offsetPort:], endpoint.Port())
	binary.BigEndian.PutUint64(open[offsetBegan:], uint64(began.Unix()))
	return base64.RawURLEncoding.EncodeToString(key.Seal(nil, nil, open[:], nil))
}

// find returns zero without a valid token.
func (s *session) find(x *transaction, now time.Time) sticky {
	text := x.in.Header.Get(s.name)
	if !s.header {
		cookie, err := x.in.Cookie(s.name)
		if err != nil {
			return sticky{}
		}
		text = cookie.Value
	}
	if len(text) != base64.RawURLEncoding.EncodedLen(lengthSealed) {
		return sticky{}
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return sticky{}
	}
	for i, key := range x.table.secrets.ciphers {
		if open, err := key.Open(sealed[:0:0], nil, sealed, nil); err == nil {
			found := s.read(x, open, now)
			found.old = i > 0
			return found
		}
	}
	return sticky{}
}

func (s *session) read(x *transaction, open []byte, now time.Time) sticky {
	began := time.Unix(int64(binary.BigEndian.Uint64(open[offsetBegan:])), 0)
	if s.lifetime > 0 && !began.Add(s.lifetime).After(now) {
		return sticky{}
	}
	address := netip.AddrPortFrom(
		netip.AddrFrom16([16]byte(open[offsetAddress:offsetPort])).Unmap(), binary.BigEndian.Uint16(open[offsetPort:]))
	for i := range x.rule.backends {
		candidate := &x.rule.backends[i]
		if candidate.id != backendID(open[:offsetAddress]) || candidate.backend == "" {
			continue
		}
		if endpoint := x.table.backend(candidate.backend).Set.At(address); endpoint != nil {
			return sticky{backend: candidate, endpoint: endpoint, began: began}
		}
	}
	return sticky{}
}

// setToken sends a token if the endpoint changed or the token is old.
func (s *session) setToken(x *transaction, header http.Header) {
	began := x.sticky.began
	switch {
	case x.endpoint != x.sticky.endpoint:
		began = x.begun
	case !x.sticky.old:
		return
	}
	text := seal(x.table.secrets.ciphers[0], x.weighted.id, x.endpoint.Address, began)
	if s.header {
		header.Set(s.name, text)
		return
	}
	cookie := http.Cookie{Name: s.name, Value: text, Path: s.path, HttpOnly: true, Secure: x.in.TLS != nil, SameSite: http.SameSiteLaxMode}
	if s.permanent && s.lifetime > 0 {
		cookie.MaxAge = max(int(time.Until(began.Add(s.lifetime)).Seconds()), 1)
	}
	header.Add("Set-Cookie", cookie.String())
}
