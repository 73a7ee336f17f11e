// SPDX-License-Identifier: Apache-2.0

// Package credentials knows users by their passwords (RFC 7617), and bounds what it costs to find
// out.
package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/tg123/go-htpasswd"
	"golang.org/x/crypto/bcrypt"
)

const (
	// mostCost is the highest cost of bcrypt: each more doubles the time of a processor, and 12 takes
	// a fifth of a second. Else who writes a file has the processors of all.
	mostCost = 12
	// mostPassword is the longest password that is tried, in bytes: MD5 hashes it 1,000 times.
	mostPassword = 1024
)

// Users are those of an htpasswd file. They do not change and may be shared.
type Users struct {
	users map[string]user
	// dearest is the hash that takes longest: who is no user takes as long.
	dearest *user
}

// user is what a user has to prove.
type user struct {
	// hash is as in the file. It is a secret.
	hash string
	htpasswd.EncodedPasswd
	cost int
}

// Parse reads a file. Its lines that cannot be read are an error, which has no part of them; the
// users are those of the others.
func Parse(file []byte) (*Users, error) {
	u := &Users{users: map[string]user{}}
	var errs []error
	number := 0
	for line := range bytes.Lines(file) {
		number++
		name, read, err := parseLine(strings.TrimRight(string(line), "\r\n"))
		switch {
		case err != nil:
			if len(errs) < mostErrors {
				errs = append(errs, fmt.Errorf("line %d: %w", number, err))
			}
			continue
		case name == "":
			continue
		}
		if _, known := u.users[name]; known {
			continue
		}
		u.users[name] = read
		if u.dearest == nil || read.cost > u.dearest.cost {
			u.dearest = &read
		}
	}
	return u, errors.Join(errs...)
}

// mostErrors are told of a file.
const mostErrors = 3

// parseLine reads "NAME:HASH", and ":" with a comment behind it. The name is empty where the line
// says nothing.
func parseLine(line string) (name string, read user, err error) {
	if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
		return "", read, nil
	}
	name, rest, found := strings.Cut(line, ":")
	if !found || name == "" {
		return "", read, errors.New("it is not NAME:HASH")
	}
	hash, _, _ := strings.Cut(rest, ":")
	read, err = parseHash(hash)
	return name, read, err
}

// The costs of hashes other than bcrypt's, whose begin at 4.
const (
	costSHA = iota + 1
	costMD5
)

// parseHash reads a hash. The parsers' own errors are left out: they have it in their text.
func parseHash(hash string) (user, error) {
	parse, cost := htpasswd.AcceptSha, costSHA
	switch {
	case strings.HasPrefix(hash, "$2a$"), strings.HasPrefix(hash, "$2b$"), strings.HasPrefix(hash, "$2y$"):
		var err error
		if cost, err = bcrypt.Cost([]byte(hash)); err != nil {
			return user{}, errors.New("its bcrypt cannot be read")
		}
		if cost > mostCost {
			return user{}, fmt.Errorf("its bcrypt has a cost of %d, and %d is the most", cost, mostCost)
		}
		parse = htpasswd.AcceptBcrypt
	case strings.HasPrefix(hash, htpasswd.PrefixCryptApr1):
		parse, cost = htpasswd.AcceptMd5, costMD5
	case strings.HasPrefix(hash, "{SSHA}"):
		parse = htpasswd.AcceptSsha
	case !strings.HasPrefix(hash, "{SHA}"):
		return user{}, errors.New("its hash is none of bcrypt, $apr1$, {SHA} and {SSHA}")
	}
	made, err := parse(hash)
	if err != nil || made == nil {
		return user{}, errors.New("its hash cannot be read")
	}
	return user{hash, made, cost}, nil
}

// Readable are the lines of a file that can be read.
func Readable(file []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(file) {
		if _, _, err := parseLine(strings.TrimRight(string(line), "\r\n")); err == nil {
			kept = append(kept, line...)
		}
	}
	return kept
}

// of is what a name has to prove, and whether it is a user's at all. Nobody proves to be a user of
// a file without any.
func (u *Users) of(name string) (proof *user, known bool) {
	if found, ok := u.users[name]; ok {
		return &found, true
	}
	return u.dearest, false
}
