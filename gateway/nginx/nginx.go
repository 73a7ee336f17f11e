// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"maps"
	"slices"
	"strings"
)

// Prefix is what the names of the annotations begin with.
const Prefix = "nginx.ingress.kubernetes.io/"

// Handling is what becomes of an annotation.
type Handling int

const (
	// Carried is carried out.
	Carried Handling = iota
	// Ignored tunes what is different here, or nothing. Nobody is told.
	Ignored
	// Missing is not carried out: it is told, and the Ingress is served without it.
	Missing
	// Refused is not carried out and may keep clients out: the Ingress is not served.
	Refused
)

// String is what the documentation and the command line call it.
func (h Handling) String() string {
	return [...]string{"carried out", "ignored", "not carried out", "refuses the Ingress"}[h]
}

// Annotation is one that ingress-nginx knows.
type Annotation struct {
	// Name is without the prefix.
	Name string
	Handling
	// Note is how it is carried out, or why it is not.
	Note string
}

// Annotations lists all that are known, by name.
func Annotations() []Annotation {
	found := make([]Annotation, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		found = append(found, Annotation{Name: name, Handling: known[name].handling, Note: known[name].note})
	}
	return found
}

// lookup returns the handling of an annotation by its name without the prefix. A word in the name of an unknown one
// may indicate that it keeps clients out.
func lookup(name string) Annotation {
	if found, is := known[name]; is {
		return Annotation{Name: name, Handling: found.handling, Note: found.note}
	}
	if Protects(name) {
		return Annotation{Name: name, Handling: Refused, Note: "it is not known, and by its name keeps clients out"}
	}
	return Annotation{Name: name, Handling: Missing, Note: "it is not known"}
}

// protecting are parts of the names of annotations that keep clients out.
var protecting = map[string]bool{
	"auth": true, "oauth": true, "oauth2": true, "oidc": true, "jwt": true, "csrf": true,
	"allow": true, "allowlist": true, "whitelist": true, "deny": true, "denylist": true, "blacklist": true, "blocklist": true,
	"waf": true, "wafv2": true, "modsecurity": true, "owasp": true, "protect": true,
}

// Protects reports whether the name of an annotation, without its prefix, has a word of those that
// keep clients out, of any controller.
func Protects(name string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' }),
		func(word string) bool { return protecting[word] })
}

// IsOff reports whether a value asks for nothing.
func IsOff(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "false", "none", "off":
		return true
	}
	return false
}

// Problem is an annotation that is not carried out, or not as it is written.
type Problem struct {
	// Name is without the prefix.
	Name string
	// Invalid says that the value cannot be read.
	Invalid bool
	// Refuses says that the Ingress is not served.
	Refuses bool
	Message string
}

// Read reads the annotations of an Ingress. Problems are sorted by name. Where one of them refuses
// the Ingress, the settings are of no use.
func Read(annotations map[string]string) (*Settings, []Problem) {
	r := &reader{of: map[string]string{}, settings: &Settings{SSLRedirect: true}}
	for name, value := range annotations {
		if short, is := strings.CutPrefix(name, Prefix); is && strings.TrimSpace(value) != "" {
			r.of[short] = strings.TrimSpace(value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.of)) {
		r.name = name
		r.read(known[name], r.of[name])
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return strings.Compare(a.Name, b.Name) })
	return r.settings, r.problems
}

// reader reads the annotations of one Ingress.
type reader struct {
	// of are the values by name without the prefix, those that are empty left out.
	of       map[string]string
	settings *Settings
	problems []Problem
	// name is that of the annotation that is being read.
	name string
}

// read reads one annotation.
func (r *reader) read(of annotation, value string) {
	found := lookup(r.name)
	switch {
	case of.read != nil:
		if err := of.read(r, value); err != nil {
			r.problems = append(r.problems, Problem{Name: r.name, Invalid: true, Refuses: of.isStrict, Message: err.Error()})
		}
	case found.Handling == Missing && !IsOff(value):
		r.lose("it is not carried out: %s", found.Note)
	case found.Handling == Refused && !IsOff(value):
		r.refuse("it is not carried out: %s", found.Note)
	}
}
