// SPDX-License-Identifier: Apache-2.0

package tunnelkey

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
)

var made = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// derivedTag is the derived key of TestDerive, computed by another program.
const derivedTag = "1d58db6756dc87dd3d344db932eeefc4cfb32de8d83fcff4e4a1c276fb3da454"

func valid() *State {
	return &State{
		Phase: Switching, Accepted: []Key{New(9), New(10)}, Sending: 10, Required: true, Since: made.Add(time.Hour), Made: made,
	}
}

func TestSecret(t *testing.T) {
	for _, state := range []*State{
		valid(),
		{Phase: Publishing, Accepted: []Key{New(1)}, Since: made, Made: made},
		{Phase: Publishing, Accepted: []Key{New(1)}, Since: made, Made: made, Seed: flowhash.NewSeed()},
		{Phase: Steady, Accepted: []Key{New(1)}, Sending: 1, Since: made, Made: made},
	} {
		got, err := Parse(state.Data())
		if err != nil || !got.Equal(state) {
			t.Errorf("read as %+v, %v; want %+v", got, err, state)
		}
	}
}

func TestParseInvalid(t *testing.T) {
	secret := strings.Repeat("x", Size)
	for _, test := range []struct{ entry, value, want string }{
		{"phase", "", "phase must be Steady, Publishing or Switching"},
		{"phase", "steady", "phase must be"},
		{"sending", "-1", "sending must be a key number"},
		{"sending", "11", "sending refers to a key that is not in the Secret"},
		{"sending", "0", "sending refers to a key that is not in the Secret"},
		{"required", "", "required must be true or false"},
		{"since", "yesterday", "since must be a time"},
		{"made", "", "made must be a time"},
		{"key-10", "short", "key-10 has 5 bytes, must have 32"},
		{"key-10", strings.Repeat("\x00", Size), "key-10 is all zeros"},
		{"key-0", secret, `"key-0" has no key number`},
		{"key-010", secret, `"key-010" has no key number`},
		{"key-4294967296", secret, `"key-4294967296" has no key number`},
		{"flow-seed", "", "flow-seed has 0 bytes, must have 32"},
		{"flow-seed", secret + "x", "flow-seed has 33 bytes, must have 32"},
		{"key-11", secret, "there are 3 keys, must be 1 or 2"},
	} {
		data := valid().Data()
		data[test.entry] = []byte(test.value)
		state, err := Parse(data)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s=%q: %+v, %v; want %q", test.entry, test.value, state, err, test.want)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
	if _, err := Parse(nil); err == nil || !strings.Contains(err.Error(), "there are 0 keys") {
		t.Errorf("an empty Secret: %v", err)
	}
	more := valid().Data()
	maps.Copy(more, map[string][]byte{"note": []byte("of a later version")})
	if _, err := Parse(more); err != nil {
		t.Errorf("an entry of a later version: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("key-1", []byte(strings.Repeat("x", Size)), "Steady", "1")
	f.Add("key-", []byte{}, "Publishing", "")
	f.Fuzz(func(t *testing.T, entry string, secret []byte, phase, sending string) {
		data := valid().Data()
		data[entry], data["phase"], data["sending"] = secret, []byte(phase), []byte(sending)
		state, err := Parse(data)
		if err != nil {
			return
		}
		again, err := Parse(state.Data())
		if err != nil || !again.Equal(state) {
			t.Errorf("%+v is read again as %+v, %v", state, again, err)
		}
	})
}

// TestDerive checks HKDF-SHA256 of a secret of 32 bytes 0x0b.
func TestDerive(t *testing.T) {
	var secret [Size]byte
	for i := range secret {
		secret[i] = 0x0b
	}
	tag, membership := Derive(secret, LabelTag), Derive(secret, LabelMembership)
	if tag == membership || tag == secret || tag == Derive(New(1).Secret, LabelTag) {
		t.Error("two uses have one key")
	}
	if got := hex.EncodeToString(tag[:]); got != derivedTag {
		t.Errorf("the key for tags is %s, want %s: nodes of two versions would not understand each other", got, derivedTag)
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	key := Key{Generation: 7, Secret: [Size]byte([]byte(strings.Repeat("s", Size)))}
	state := &State{Accepted: []Key{key}}
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, key), fmt.Sprintf(verb, state), fmt.Sprintf(verb, []Key{key}))
	}
	encoded, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(texts, string(encoded)) {
		for _, form := range []string{"sss", "737373", "115 115", "115,115", "0x73", "c3Nz"} {
			if strings.Contains(text, form) {
				t.Errorf("printed: %s", text)
			}
		}
	}
}

func TestAdopt(t *testing.T) {
	state := func(phase Phase, sending uint32, required bool, generations ...uint32) *State {
		s := &State{Phase: phase, Sending: sending, Required: required}
		for _, generation := range generations {
			s.Accepted = append(s.Accepted, New(generation))
		}
		return s
	}
	ring := func(sending uint32, required bool, accepted ...uint32) Ring { return Ring{accepted, sending, required} }
	for _, test := range []struct {
		name  string
		has   Ring
		state *State
		want  Ring
	}{
		{"first key", Ring{}, state(Publishing, 0, false, 1), ring(0, false, 1)},
		{"new node", Ring{}, state(Steady, 1, true, 1), ring(1, true, 1)},
		{"new node while keys change", Ring{}, state(Publishing, 1, true, 1, 2), ring(1, true, 1, 2)},
		{"new node after a loss", Ring{}, state(Publishing, 0, true, 3), ring(3, false, 3)},
		{"loss", ring(2, true, 2), state(Publishing, 0, true, 3), ring(2, true, 2, 3)},
		{"loss, tags not yet required in the Secret", ring(2, true, 2), state(Publishing, 0, false, 3), ring(2, true, 2, 3)},
		{"loss while keys change", ring(1, true, 1, 2), state(Publishing, 0, true, 3), ring(1, true, 1, 2, 3)},
		{"the key that is sent is kept first", ring(1, true, 1, 2, 3), state(Publishing, 0, true, 4), ring(1, true, 1, 3, 4)},
		{"end", ring(3, true, 1, 2, 3), state(Steady, 3, true, 3), ring(3, true, 3)},
		{"no longer required", ring(3, true, 3), state(Steady, 3, false, 3), ring(3, false, 3)},
	} {
		if got := Adopt(test.has, test.state); !got.Equal(test.want) {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}
