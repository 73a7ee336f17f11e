// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// Hashes of "myPassword" from Apache's page "Password Formats".
const (
	ofSHA    = "{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE="
	ofMD5    = "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"
	ofBcrypt = "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC"
)

var someone = netip.MustParseAddr("198.51.100.1")

func hashed(password string) string {
	sum := sha1.Sum([]byte(password))
	return "{SHA}" + base64.StdEncoding.EncodeToString(sum[:])
}

func TestVerify(t *testing.T) {
	users, err := Parse([]byte("# users\n\nsha:" + ofSHA + "\r\nmd5:" + ofMD5 + ":a comment\nbcrypt:" + ofBcrypt +
		"\nsalted:{SSHA}sP6mTQZ41evUNNd3Bd6ipxzZAGJhYmNk\nsha:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=\nlast:" + ofSHA +
		"\nlong:" + hashed(strings.Repeat("x", maxPassword+1)) + "\nlonger:" + hashed(strings.Repeat("x", maxPassword))))
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(1)
	for range 2 {
		for _, test := range []struct {
			name, password string
			want           Result
		}{
			{"sha", "myPassword", Right}, {"md5", "myPassword", Right}, {"bcrypt", "myPassword", Right}, {"last", "myPassword", Right},
			{"sha", "mypassword", Wrong}, {"md5", "", Wrong}, {"bcrypt", "myPassword ", Wrong},
			{"salted", "myPassword", Wrong}, {"none", "myPassword", Wrong}, {"", "myPassword", Wrong}, {"# users", "", Wrong},
			{"sha", "test", Wrong}, {"long", strings.Repeat("x", maxPassword+1), Wrong}, {"longer", strings.Repeat("x", maxPassword), Right},
		} {
			if got := v.Verify(t.Context(), users, someone, test.name, test.password); got != test.want {
				t.Errorf("%s with %.20q: %v; want %v", test.name, test.password, got, test.want)
			}
		}
	}
	if v.cached.Len() != 5 {
		t.Errorf("%d entries are cached; want 5", v.cached.Len())
	}
	// An unknown name is verified against the slowest hash, with a correct password.
	if got := v.Verify(t.Context(), users, someone, "nobody", "myPassword"); got != Wrong {
		t.Errorf("unknown user with a valid password: %v", got)
	}
	if got := v.Verify(t.Context(), &Users{}, someone, "sha", "myPassword"); got != Wrong {
		t.Errorf("file without users: %v", got)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if got := v.Verify(ended, users, someone, "sha", "other"); got != Busy {
		t.Errorf("canceled request: %v; want no verification", got)
	}
}

// TestRemembersNoOldPassword checks that the cache key includes the hash, name and password.
func TestRemembersNoOldPassword(t *testing.T) {
	v := NewVerifier(1)
	parse := func(text string) *Users {
		users, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return users
	}
	old := parse("a:" + ofSHA)
	if got := v.Verify(t.Context(), old, someone, "a", "myPassword"); got != Right {
		t.Fatal(got)
	}
	for name, users := range map[string]*Users{
		"another password": parse("a:{SHA}" + "qUqP5cyxm6YcTAhz05Hph5gvu9M="), "gone": parse("b:" + ofSHA),
	} {
		if got := v.Verify(t.Context(), users, someone, "a", "myPassword"); got != Wrong {
			t.Errorf("%s: %v", name, got)
		}
	}
	if v.mac("h", "ab", "c") == v.mac("h", "a", "bc") {
		t.Error("two pairs of user and password have the same MAC")
	}
}

// TestCachedPasswordsAreFree checks that cached passwords bypass the queue, which limits password guessing.
func TestCachedPasswordsAreFree(t *testing.T) {
	users, err := Parse([]byte("a:" + ofSHA))
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(1)
	if got := v.Verify(t.Context(), users, someone, "a", "myPassword"); got != Right {
		t.Fatal(got)
	}
	v.queue.Acquire(netip.Addr{})
	results := make(chan Result, 100)
	guess := func(client netip.Addr) {
		go func() { results <- v.Verify(t.Context(), users, client, "a", "guess") }()
	}
	for range 100 {
		guess(someone)
	}
	for range 100 - maxPerClient {
		if got := <-results; got != ClientBusy {
			t.Fatalf("attempt above the limit of a client: %v; want ClientBusy", got)
		}
	}
	for i := range 100 {
		guess(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	for range 100 - (maxWaiting - maxPerClient) {
		if got := <-results; got != Busy {
			t.Fatalf("one attempt too many of one client: %v; want Busy", got)
		}
	}
	if got := v.Verify(t.Context(), users, someone, "a", "myPassword"); got != Right {
		t.Errorf("cached user: %v", got)
	}
	v.queue.Release()
	for range maxWaiting {
		if got := <-results; got != Wrong {
			t.Errorf("attempt: %v", got)
		}
	}
}

// TestUnknownUsersCostTheSame checks that unknown users are verified against the slowest hash.
func TestUnknownUsersCostTheSame(t *testing.T) {
	users, err := Parse([]byte("sha:" + ofSHA + "\nbcrypt:" + ofBcrypt + "\nmd5:" + ofMD5))
	if err != nil {
		t.Fatal(err)
	}
	proof, known := users.lookup("nobody")
	if known || proof.hash != ofBcrypt {
		t.Errorf("known = %v, hash %s", known, proof.hash)
	}
}

func TestUnreadable(t *testing.T) {
	dear, err := bcrypt.GenerateFromPassword([]byte("x"), 5)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimPrefix(ofMD5, "$apr1$")
	for _, line := range []string{
		"a", ":" + ofSHA, "a:", "a:plain", "a:{PLAIN}x", "a:{SHA}x", "a:{SHA}AAAA", "a:$apr1$nosalt", "a:$1$" + secret, "a:$2y$05$short", "a:$2x$" + string(dear[4:]),
		"a:" + strings.Replace(string(dear), "$05$", "$13$", 1), "a:$6$rounds=999999999$salt$x", "a:$5$salt$x", "a:aaaaaaaaaaaaa", "a:{SSHA}x",
	} {
		users, err := Parse([]byte("good:" + ofSHA + "\n" + line + "\nfine:" + ofSHA + "\n"))
		if err == nil {
			t.Errorf("no error for %s", line)
			continue
		}
		if !strings.HasPrefix(err.Error(), "line 2: ") || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), string(dear[7:])) {
			t.Errorf("%s: %v", line, err)
		}
		if len(users.users) != 2 {
			t.Errorf("%s: %d users; want those of the valid lines", line, len(users.users))
		}
	}
	if _, err := Parse([]byte(strings.Repeat("x\n", 1000))); err == nil || len(err.Error()) > 300 {
		t.Errorf("a thousand lines: %v", err)
	}
}

// FuzzParse checks the names of users in arbitrary files.
func FuzzParse(f *testing.F) {
	f.Add([]byte("a:" + ofSHA + "\nb:" + ofMD5 + "\n#\n\nc:" + ofBcrypt + ":c\nd:{SSHA}x\ne"))
	f.Fuzz(func(t *testing.T, file []byte) {
		users, _ := Parse(file)
		for name := range users.users {
			if name == "" || strings.ContainsAny(name, ":\n") {
				t.Fatalf("invalid user name %q", name)
			}
		}
	})
}
