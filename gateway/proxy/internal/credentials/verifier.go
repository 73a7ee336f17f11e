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
	"github.com/millrace-lb/millrace/gateway/proxy/internal/recent"
)

// Result is what comes of a password.
type Result int

const (
	// Wrong says that the name is no user's, or the password not the user's.
	Wrong Result = iota
	// Right lets the user in.
	Right
	// Busy says that too many passwords wait.
	Busy
	// Impatient says that too many of the client's own wait.
	Impatient
)

const (
	// mostWaiting is how many passwords wait to be verified, and mostOfClient those of a client. With
	// the highest cost and one processor the last of all waits for six seconds.
	mostWaiting, mostOfClient = 32, 4
	// mostVerified is how many are remembered: 200 bytes each.
	mostVerified = 20_000
)

// Verifier verifies passwords, a few at once, and remembers those that were right. So who guesses
// takes a part of the processors, and users who were let in before do not wait for it.
type Verifier struct {
	key   []byte
	turns *admission.Turns

	mutex sync.Mutex
	// verified are names with passwords that were right, by a keyed hash of both and of the stored
	// hash: a password that has been changed is not found.
	verified *recent.Map[[sha256.Size]byte, struct{}]
}

// NewVerifier verifies so many passwords at once.
func NewVerifier(atOnce int) *Verifier {
	v := &Verifier{
		key: make([]byte, sha256.Size), turns: admission.NewTurns(atOnce),
		verified: recent.New[[sha256.Size]byte, struct{}](mostVerified),
	}
	_, _ = rand.Read(v.key)
	return v
}

// Verify finds out whether a client knows a user's password. A name that is no user's takes as
// long as the user whose hash takes longest. It waits for its turn; where the context has ended
// by then the result is Busy.
func (v *Verifier) Verify(ctx context.Context, users *Users, client netip.Addr, name, password string) Result {
	proof, known := users.of(name)
	if proof == nil || len(password) > mostPassword {
		return Wrong
	}
	mac := v.mac(proof.hash, name, password)
	if known && v.remembers(mac) {
		return Right
	}
	switch all, own := v.turns.TakeWithin(client, mostWaiting, mostOfClient); {
	case !own:
		return Impatient
	case !all:
		return Busy
	}
	defer v.turns.Give()
	if ctx.Err() != nil {
		return Busy
	}
	if !proof.MatchesPassword(password) || !known {
		return Wrong
	}
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.verified.Put(mac, struct{}{})
	return Right
}

func (v *Verifier) remembers(mac [sha256.Size]byte) bool {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	_, found := v.verified.Get(mac)
	return found
}

// mac is a keyed hash of texts, each with its length before it.
func (v *Verifier) mac(texts ...string) (sum [sha256.Size]byte) {
	hash := hmac.New(sha256.New, v.key)
	for _, text := range texts {
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		_, _ = hash.Write([]byte(text))
	}
	hash.Sum(sum[:0])
	return sum
}
