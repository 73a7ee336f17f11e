// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// notificationNames are the error codes and subcodes of RFC 4271, section 4.5, and of RFC 4486, 5492, 6608,
// 8538, 9234, 9384 and 9687.
var notificationNames = map[byte]struct {
	name     string
	subcodes map[byte]string
}{
	1: {"Message Header Error", map[byte]string{
		1: "Connection Not Synchronized", 2: "Bad Message Length", 3: "Bad Message Type",
	}},
	2: {"OPEN Message Error", map[byte]string{
		1: "Unsupported Version Number", 2: "Bad Peer AS", 3: "Bad BGP Identifier",
		4: "Unsupported Optional Parameter", 6: "Unacceptable Hold Time",
		7: "Unsupported Capability", 11: "Role Mismatch",
	}},
	3: {"UPDATE Message Error", map[byte]string{
		1: "Malformed Attribute List", 2: "Unrecognized Well-known Attribute",
		3: "Missing Well-known Attribute", 4: "Attribute Flags Error", 5: "Attribute Length Error",
		6: "Invalid ORIGIN Attribute", 8: "Invalid NEXT_HOP Attribute", 9: "Optional Attribute Error",
		10: "Invalid Network Field", 11: "Malformed AS_PATH",
	}},
	4: {"Hold Timer Expired", nil},
	5: {"Finite State Machine Error", map[byte]string{
		1: "Unexpected Message in OpenSent", 2: "Unexpected Message in OpenConfirm",
		3: "Unexpected Message in Established",
	}},
	6: {"Cease", map[byte]string{
		1: "Maximum Number of Prefixes Reached", 2: "Administrative Shutdown", 3: "Peer De-configured",
		4: "Administrative Reset", 5: "Connection Rejected", 6: "Other Configuration Change",
		7: "Connection Collision Resolution", 8: "Out of Resources", 9: "Hard Reset", 10: "BFD Down",
	}},
	7: {"ROUTE-REFRESH Message Error", map[byte]string{1: "Invalid Message Length"}},
	8: {"Send Hold Timer Expired", nil},
}

func notificationName(code, subcode byte) string {
	known, found := notificationNames[code]
	if !found {
		return fmt.Sprintf("code %d subcode %d", code, subcode)
	}
	if subcode == 0 {
		return known.name
	}
	if name, found := known.subcodes[subcode]; found {
		return known.name + ": " + name
	}
	return fmt.Sprintf("%s: subcode %d", known.name, subcode)
}

// hints are the most frequent causes of a received NOTIFICATION, by code and subcode.
var hints = map[[2]byte]string{
	{2, 2}: "the router expects another localASN",
	{2, 3}: "the router or another speaker has the node's BGP identifier",
	{6, 3}: "the router no longer has this neighbor",
	{6, 5}: "the router does not have this neighbor, or its session is with another speaker of this node",
	{6, 7}: "another speaker of this node has the session with the router",
}

func hintFor(message []byte) string {
	if len(message) >= headerLength+2 {
		if hint := hints[[2]byte(message[headerLength:headerLength+2])]; hint != "" {
			return " (" + hint + ")"
		}
	}
	return ""
}

// describeNotification formats a NOTIFICATION with its shutdown communication (RFC 9003).
func describeNotification(message []byte) string {
	if len(message) < headerLength+2 {
		return "NOTIFICATION without a code"
	}
	body := message[headerLength:]
	code, subcode := body[0], body[1]
	text := "NOTIFICATION " + notificationName(code, subcode)
	if code == 6 && (subcode == 2 || subcode == 4) {
		if communication := shutdownCommunication(body[2:]); communication != "" {
			text += fmt.Sprintf(" %q", communication)
		}
	}
	return text
}

// shutdownCommunication decodes RFC 9003: a length octet, then UTF-8. Malformed data is ignored.
func shutdownCommunication(data []byte) string {
	if len(data) == 0 || int(data[0]) > len(data)-1 {
		return ""
	}
	text := data[1 : 1+int(data[0])]
	if !utf8.Valid(text) {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, string(text))
}
