// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"maps"
	"slices"
	"strings"
)

// Prefix is the prefix of annotation names.
const Prefix = "nginx.ingress.kubernetes.io/"

// Handling is the level of support for an annotation.
type Handling int

const (
	// Supported annotations are implemented.
	Supported Handling = iota
	// Ignored annotations have no effect because they configure nothing that Millrace needs. They are not
	// reported.
	Ignored
	// Unsupported annotations are reported; the Ingress is served without them.
	Unsupported
	// Refused annotations are not implemented and may restrict clients, so the Ingress is not served.
	Refused
)

// String returns the name that documentation and commands show.
func (h Handling) String() string {
	return [...]string{"supported", "ignored", "not supported", "refuses the Ingress"}[h]
}

// Annotation describes the support for an annotation of ingress-nginx.
type Annotation struct {
	Name string
	Handling
	Note string
}

// Annotations returns all known annotations, sorted by name.
func Annotations() []Annotation {
	found := make([]Annotation, 0, len(annotations))
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		found = append(found, Annotation{Name: name, Handling: annotations[name].handling, Note: annotations[name].note})
	}
	return found
}

// lookup returns the handling of an annotation. An unknown annotation is refused if its name contains a
// restricting word.
func lookup(name string) Annotation {
	if found, is := annotations[name]; is {
		return Annotation{Name: name, Handling: found.handling, Note: found.note}
	}
	if Protects(name) {
		return Annotation{Name: name, Handling: Refused, Note: "it is unknown, and its name suggests that it restricts clients"}
	}
	return Annotation{Name: name, Handling: Unsupported, Note: "it is unknown"}
}

var restrictingWords = map[string]bool{
	"auth": true, "oauth": true, "oauth2": true, "oidc": true, "jwt": true, "csrf": true,
	"allow": true, "allowlist": true, "whitelist": true, "deny": true, "denylist": true, "blacklist": true, "blocklist": true,
	"waf": true, "wafv2": true, "modsecurity": true, "owasp": true, "protect": true,
}

// Protects reports whether an annotation's name, without the prefix, contains a word that indicates that the
// annotation restricts clients.
func Protects(name string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' }),
		func(word string) bool { return restrictingWords[word] })
}

// IsOff reports whether a value disables its annotation.
func IsOff(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "false", "none", "off":
		return true
	}
	return false
}

// Problem describes an annotation that is unsupported or invalid, entirely or in part.
type Problem struct {
	Name    string
	Invalid bool
	// Refuses is true if the Ingress must not be served.
	Refuses bool
	Message string
}

// Read parses the annotations of an Ingress. Problems are sorted by name. If a problem refuses the Ingress,
// the settings must not be used.
func Read(raw map[string]string) (*Settings, []Problem) {
	r := &reader{values: map[string]string{}, settings: &Settings{SSLRedirect: true}}
	for name, value := range raw {
		if short, is := strings.CutPrefix(name, Prefix); is && strings.TrimSpace(value) != "" {
			r.values[short] = strings.TrimSpace(value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.values)) {
		r.name = name
		r.read(annotations[name], r.values[name])
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return strings.Compare(a.Name, b.Name) })
	return r.settings, r.problems
}

type reader struct {
	// values maps names without the prefix to non-empty values.
	values   map[string]string
	settings *Settings
	problems []Problem
	name     string
}

func (r *reader) read(of annotation, value string) {
	found := lookup(r.name)
	switch {
	case of.read != nil:
		if err := of.read(r, value); err != nil {
			r.problems = append(r.problems, Problem{Name: r.name, Invalid: true, Refuses: of.isStrict, Message: err.Error()})
		}
	case found.Handling == Unsupported && !IsOff(value):
		r.reportUnsupported("it is not supported: %s", found.Note)
	case found.Handling == Refused && !IsOff(value):
		r.refuse("it is not supported: %s", found.Note)
	}
}
