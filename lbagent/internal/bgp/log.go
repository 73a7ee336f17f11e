// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-logr/logr"
	bgplog "github.com/osrg/gobgp/v3/pkg/log"
)

// logAdapter is the logger of a GoBGP server. Why a session is not
// established GoBGP tells its log only, so this is also where it is learnt.
type logAdapter struct {
	logger   logr.Logger
	observed atomic.Pointer[observed]
}

// observe says whose failures the log is about from now on.
func (l *logAdapter) observe(observed *observed) { l.observed.Store(observed) }

// learn notes what a log entry says about the session. Messages and fields
// are those of GoBGP's pkg/server/fsm.go.
func (l *logAdapter) learn(message string, fields bgplog.Fields) {
	observed := l.observed.Load()
	if observed == nil {
		return
	}
	switch message {
	case "failed to connect":
		observed.fail(fmt.Sprint(fields["Error"]))
	case "hold timer expired":
		observed.fail("hold timer expired")
	case "received notification":
		observed.fail(fmt.Sprintf("received NOTIFICATION code %v subcode %v", fields["Code"], fields["Subcode"]))
	case "sent notification":
		observed.fail(fmt.Sprintf("sent NOTIFICATION: %v", fields["Data"]))
	case "Peer Down":
		// GoBGP's word for a connection that ended without a NOTIFICATION.
		if reason := fmt.Sprint(fields["Reason"]); reason == "graceful-restart" {
			observed.lose()
			observed.fail("connection lost")
		} else if reason == "read-failed" || reason == "write-failed" {
			observed.fail("connection lost")
		}
	}
}

// SetLevel has no effect: logr decides.
func (l *logAdapter) SetLevel(bgplog.LogLevel) {}

// GetLevel is Debug, since failures to connect are logged at that level only.
func (l *logAdapter) GetLevel() bgplog.LogLevel { return bgplog.DebugLevel }

// Panic and Fatal are GoBGP's internal errors; they end neither the process
// nor the other sessions.
func (l *logAdapter) Panic(message string, fields bgplog.Fields) { l.Error(message, fields) }
func (l *logAdapter) Fatal(message string, fields bgplog.Fields) { l.Error(message, fields) }

func (l *logAdapter) Error(message string, fields bgplog.Fields) {
	l.learn(message, fields)
	l.logger.Error(errors.New(message), "GoBGP", keyValues(fields)...)
}

func (l *logAdapter) Warn(message string, fields bgplog.Fields) {
	l.learn(message, fields)
	l.logger.Info("GoBGP: "+message, keyValues(fields)...)
}

func (l *logAdapter) Info(message string, fields bgplog.Fields) {
	l.learn(message, fields)
	l.logger.V(1).Info("GoBGP: "+message, keyValues(fields)...)
}

func (l *logAdapter) Debug(message string, fields bgplog.Fields) {
	l.learn(message, fields)
	if logger := l.logger.V(3); logger.Enabled() {
		logger.Info("GoBGP: "+message, keyValues(fields)...)
	}
}

func keyValues(fields bgplog.Fields) []any {
	values := make([]any, 0, 2*len(fields))
	for key, value := range fields {
		values = append(values, key, value)
	}
	return values
}
