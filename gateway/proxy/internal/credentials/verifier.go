// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/lru"
)

// Result is the result of a verification.
type Result int

const (
	// Wrong is returned for an unknown user or a wrong password.
	Wrong Result = iota
	// Right is returned for a correct password.
	Right
	// Busy is returned if too many verifications are queued.
	Busy
	// ClientBusy is returned if too many verifications of the same client are queued.
	ClientBusy
)

const (
	// maxWaiting and maxPerClient limit the queue. On one CPU with the highest cost, the last one waits six
	// seconds.
	maxWaiting, maxPerClient = 32, 4
	// maxVerified is the size of the cache of verified passwords, 200 bytes each.
	maxVerified = 20_000
)

// Verifier verifies passwords with bounded concurrency and caches correct ones, so that password guessing does
// not delay users with cached passwords.
type Verifier struct {
	key   []byte
	queue *admission.FairQueue

	mutex sync.Mutex
	// cached is keyed by an HMAC of name, password and hash, so that a changed password invalidates it.
	cached *lru.Cache[[sha256.Size]byte, struct{}]
}

// NewVerifier returns a Verifier with the given concurrency.
func NewVerifier(atOnce int) *Verifier {
	v := &Verifier{
		key: make([]byte, sha256.Size), queue: admission.NewFairQueue(atOnce),
		cached: lru.New[[sha256.Size]byte, struct{}](maxVerified),
	}
	_, _ = rand.Read(v.key)
	return v
}

// Verify waits for the client's turn. An unknown name takes as long as the slowest hash. It returns Busy if the
// context ends while queued.
func (v *Verifier) Verify(ctx context.Context, users *Users, client netip.Addr, name, password string) Result {
	proof, known := users.lookup(name)
	if proof == nil || len(password) > maxPassword {
		return Wrong
	}
	mac := v.mac(proof.hash, name, password)
	if known && v.isCached(mac) {
		return Right
	}
	switch all, own := v.queue.TryAcquire(client, maxWaiting, maxPerClient); {
	case !own:
		return ClientBusy
	case !all:
		return Busy
	}
	defer v.queue.Release()
	if ctx.Err() != nil {
		return Busy
	}
	if !proof.MatchesPassword(password) || !known {
		return Wrong
	}
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.cached.Put(mac, struct{}{})
	return Right
}

func (v *Verifier) isCached(mac [sha256.Size]byte) bool {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	_, found := v.cached.Get(mac)
	return found
}

// mac returns the HMAC of length-prefixed texts.
func (v *Verifier) mac(texts ...string) (sum [sha256.Size]byte) {
	hash := hmac.New(sha256.New, v.key)
	for _, text := range texts {
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		_, _ = hash.Write([]byte(text))
	}
	hash.Sum(sum[:0])
	return sum
}
