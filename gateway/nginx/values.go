// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

func (r *reader) reportUnsupported(format string, arguments ...any) {
	r.problems = append(r.problems, Problem{Name: r.name, Message: fmt.Sprintf(format, arguments...)})
}

func (r *reader) refuse(format string, arguments ...any) {
	r.problems = append(r.problems, Problem{Name: r.name, Refuses: true, Message: fmt.Sprintf(format, arguments...)})
}

func (r *reader) reportInvalid(name string, err error) {
	r.problems = append(r.problems, Problem{Name: name, Invalid: true, Message: err.Error()})
}

func (r *reader) isTrue(name string, otherwise bool) bool {
	text, found := r.values[name]
	if !found {
		return otherwise
	}
	value, err := parseBool(text)
	if err != nil {
		r.reportInvalid(name, err)
		return otherwise
	}
	return value
}

func (r *reader) number(name string, lowest, highest, otherwise uint32) uint32 {
	text, found := r.values[name]
	if !found {
		return otherwise
	}
	value, err := parseNumber(text, lowest, highest)
	if err != nil {
		r.reportInvalid(name, err)
		return otherwise
	}
	return value
}

func parseBool(text string) (bool, error) {
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s is neither true nor false", quoted(text))
	}
	return value, nil
}

func parseNumber(text string, lowest, highest uint32) (uint32, error) {
	value, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uint32(value) < lowest || uint32(value) > highest {
		return 0, fmt.Errorf("%s is not a number from %d to %d", quoted(text), lowest, highest)
	}
	return uint32(value), nil
}

// quoted quotes a value for a message and limits its length, because untrusted users write the values.
func quoted(text string) string {
	const most = 80
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(text)
}

func splitList(text string) []string {
	var found []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			found = append(found, part)
		}
	}
	return found
}

const maxPrefixes = 10_000

func parsePrefixes(text string) ([]netip.Prefix, error) {
	parts := splitList(text)
	switch {
	case len(parts) == 0:
		return nil, errors.New("it is empty")
	case len(parts) > maxPrefixes:
		return nil, fmt.Errorf("the list has %d prefixes, the limit is %d", len(parts), maxPrefixes)
	}
	found := make([]netip.Prefix, 0, len(parts))
	for _, part := range parts {
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			address, other := netip.ParseAddr(part)
			if other != nil || address.Zone() != "" {
				return nil, fmt.Errorf("%s is neither a prefix nor an address", quoted(part))
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		found = append(found, prefix.Masked())
	}
	return found, nil
}

// parseSize parses a size in nginx syntax: a number with an optional suffix k, m or g.
func parseSize(text string) (int64, error) {
	digits, unit := strings.ToLower(text), int64(1)
	for suffix, times := range map[string]int64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30} {
		if cut, is := strings.CutSuffix(digits, suffix); is {
			digits, unit = cut, times
			break
		}
	}
	value, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || value < 0 || value > 1<<40/unit {
		return 0, fmt.Errorf("%s is not a size, such as 8m", quoted(text))
	}
	return value * unit, nil
}

// isToken reports whether a text is a token (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return text != ""
}

func isPrintable(text string) bool {
	for _, c := range text {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			return false
		}
	}
	return true
}
