// SPDX-License-Identifier: Apache-2.0

// Package credentials verifies passwords of Basic authentication (RFC 7617) with limited CPU time.
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
	// maxCost is the maximum cost of bcrypt, 0.2 s of CPU; each increment doubles it. A single file must not
	// exhaust the CPUs shared by all tenants.
	maxCost = 12
	// maxPassword is in bytes, because MD5 hashes a password 1,000 times.
	maxPassword = 1024
)

// Users are the users of an htpasswd file. It is immutable and may be shared.
type Users struct {
	users map[string]user
	// slowest is verified for unknown names, so that their response times do not differ.
	slowest *user
}

type user struct {
	hash string
	htpasswd.EncodedPasswd
	cost int
}

// Parse returns the users of all valid lines and an error about invalid ones, which contains none of their
// content.
func Parse(file []byte) (*Users, error) {
	u := &Users{users: map[string]user{}}
	var errs []error
	number := 0
	for line := range bytes.Lines(file) {
		number++
		name, read, err := parseLine(strings.TrimRight(string(line), "\r\n"))
		switch {
		case err != nil:
			if len(errs) < maxErrors {
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
		if u.slowest == nil || read.cost > u.slowest.cost {
			u.slowest = &read
		}
	}
	return u, errors.Join(errs...)
}

const maxErrors = 3

// parseLine parses "NAME:HASH", with an optional ":" and comment. Empty lines and comments have no name.
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

// Relative costs of hashes other than bcrypt, whose minimum cost is 4.
const (
	costSHA = iota + 1
	costMD5
)

// parseHash drops errors of the hash parsers, because they contain the hash.
func parseHash(hash string) (user, error) {
	parse, cost := htpasswd.AcceptSha, costSHA
	switch {
	case strings.HasPrefix(hash, "$2a$"), strings.HasPrefix(hash, "$2b$"), strings.HasPrefix(hash, "$2y$"):
		var err error
		if cost, err = bcrypt.Cost([]byte(hash)); err != nil {
			return user{}, errors.New("its bcrypt hash is invalid")
		}
		if cost > maxCost {
			return user{}, fmt.Errorf("its bcrypt cost %d exceeds %d", cost, maxCost)
		}
		parse = htpasswd.AcceptBcrypt
	case strings.HasPrefix(hash, htpasswd.PrefixCryptApr1):
		parse, cost = htpasswd.AcceptMd5, costMD5
	case strings.HasPrefix(hash, "{SSHA}"):
		parse = htpasswd.AcceptSsha
	case !strings.HasPrefix(hash, "{SHA}"):
		return user{}, errors.New("its hash is not bcrypt, $apr1$, {SHA} or {SSHA}")
	}
	made, err := parse(hash)
	if err != nil || made == nil {
		return user{}, errors.New("its hash is invalid")
	}
	return user{hash, made, cost}, nil
}

// lookup reports whether the user exists. The hash is nil for a file without users.
func (u *Users) lookup(name string) (proof *user, known bool) {
	if found, ok := u.users[name]; ok {
		return &found, true
	}
	return u.slowest, false
}
