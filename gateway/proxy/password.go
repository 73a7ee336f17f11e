// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// maxVerifications limits password verification to a quarter of the CPUs.
func maxVerifications() int { return max(runtime.GOMAXPROCS(0)/4, 1) }

var (
	deniedNoCredentials = &denial{http.StatusUnauthorized, "missing_credentials", "the rule asks for a password"}
	deniedPassword      = &denial{http.StatusUnauthorized, "invalid_credentials", "unknown user or wrong password"}
	deniedBusy          = &denial{http.StatusServiceUnavailable, "password_verifications", "too many passwords are queued for verification"}
	deniedClientBusy    = &denial{http.StatusTooManyRequests, "password_verifications", "too many passwords of the client are queued for verification"}
)

func (g *guards) requirePassword(with *resource.BasicAuthentication) error {
	switch {
	case g.password != nil:
		return errors.New("a rule has at most one Basic authentication")
	case with.GetUsers() == "":
		return errors.New("authentication without users")
	case strings.ContainsFunc(with.GetRealm(), func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("the realm has control characters")
	}
	realm := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(with.GetRealm())
	g.password, g.challenge = with, fmt.Sprintf(`Basic realm="%s", charset="UTF-8"`, realm)
	return nil
}

func (x *transaction) authenticate(w *responseWriter) *denial {
	guards := &x.rule.filters.guards
	if guards.password == nil {
		return nil
	}
	name, password, given := x.in.BasicAuth()
	if !given {
		w.Header().Set("WWW-Authenticate", guards.challenge)
		return deniedNoCredentials
	}
	users, client := x.table.users[guards.password.GetUsers()].value, admission.Client(x.address())
	switch x.proxy.verifier.Verify(x.in.Context(), users, client, name, password) {
	case credentials.Right:
		return nil
	case credentials.Busy:
		return deniedBusy
	case credentials.ClientBusy:
		return deniedClientBusy
	}
	w.Header().Set("WWW-Authenticate", guards.challenge)
	return deniedPassword
}
