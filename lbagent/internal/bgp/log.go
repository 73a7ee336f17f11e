// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"

	"github.com/go-logr/logr"
	bgplog "github.com/osrg/gobgp/v3/pkg/log"
)

type logAdapter struct{ logger logr.Logger }

// SetLevel has no effect: logr's verbosity applies.
func (l *logAdapter) SetLevel(bgplog.LogLevel) {}

// GetLevel lets GoBGP skip debug entries that logr would drop.
func (l *logAdapter) GetLevel() bgplog.LogLevel {
	if l.logger.V(3).Enabled() {
		return bgplog.DebugLevel
	}
	return bgplog.InfoLevel
}

// Panic and Fatal log an internal error of GoBGP without ending the process or other sessions.
func (l *logAdapter) Panic(message string, fields bgplog.Fields) { l.Error(message, fields) }
func (l *logAdapter) Fatal(message string, fields bgplog.Fields) { l.Error(message, fields) }

func (l *logAdapter) Error(message string, fields bgplog.Fields) {
	l.logger.Error(errors.New(message), "GoBGP", keyValues(fields)...)
}

func (l *logAdapter) Warn(message string, fields bgplog.Fields) {
	l.logger.Info("GoBGP: "+message, keyValues(fields)...)
}

func (l *logAdapter) Info(message string, fields bgplog.Fields) {
	l.logger.V(1).Info("GoBGP: "+message, keyValues(fields)...)
}

func (l *logAdapter) Debug(message string, fields bgplog.Fields) {
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
