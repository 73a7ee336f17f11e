// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// session keeps the requests of a client at one endpoint. Its token names the endpoint
// by a keyed digest, so that it works at all proxies and tells nothing of the cluster.
type session struct {
	header    bool
	name      string
	lifetime  time.Duration
	permanent bool
}

const (
	// endpointDigest is long enough that two endpoints of a Service have not the same.
	endpointDigest = 12
	tokenLength    = endpointDigest + 8
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
	}
	if s.name == "" {
		s.name = "millrace-session"
	}
	return s
}

// token names an endpoint of a backend, and when the session began.
func token(secret []byte, backend string, endpoint *balance.Endpoint, began time.Time) []byte {
	digest := hmac.New(sha256.New, secret)
	digest.Write([]byte(backend + "\x00" + endpoint.Address.String()))
	return binary.BigEndian.AppendUint64(digest.Sum(nil)[:endpointDigest], uint64(began.Unix()))
}

// find gives the endpoint that a request belongs to, and the share that it is of.
func (s *session) find(x *exchange, now time.Time) (*share, *balance.Endpoint, time.Time) {
	text := x.in.Header.Get(s.name)
	if !s.header {
		cookie, err := x.in.Cookie(s.name)
		if err != nil {
			return nil, nil, now
		}
		text = cookie.Value
	}
	given, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(given) != tokenLength {
		return nil, nil, now
	}
	began := time.Unix(int64(binary.BigEndian.Uint64(given[endpointDigest:])), 0)
	// A client must not put the end off by a beginning in the future.
	if s.lifetime > 0 && (!began.Add(s.lifetime).After(now) || began.After(now.Add(time.Minute))) {
		return nil, nil, now
	}
	for i := range x.rule.shares {
		share := &x.rule.shares[i]
		if share.backend == "" || x.table.backend(share.backend).Set == nil {
			continue
		}
		for _, endpoint := range x.table.backend(share.backend).Set.All() {
			for _, secret := range x.table.secrets {
				if hmac.Equal(given, token(secret, share.backend, endpoint, began)) {
					return share, endpoint, began
				}
			}
		}
	}
	return nil, nil, now
}

// give tells the client its token.
func (s *session) give(x *exchange, endpoint *balance.Endpoint, header http.Header) {
	text := base64.RawURLEncoding.EncodeToString(token(x.table.secrets[0], x.share.backend, endpoint, x.began))
	if s.header {
		header.Set(s.name, text)
		return
	}
	cookie := http.Cookie{Name: s.name, Value: text, Path: "/", HttpOnly: true, Secure: x.in.TLS != nil, SameSite: http.SameSiteLaxMode}
	if s.permanent && s.lifetime > 0 {
		cookie.MaxAge = max(int(time.Until(x.began.Add(s.lifetime)).Seconds()), 1)
	}
	header.Add("Set-Cookie", cookie.String())
}
