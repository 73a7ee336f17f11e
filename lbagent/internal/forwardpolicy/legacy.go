// SPDX-License-Identifier: Apache-2.0

package forwardpolicy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Rules of iptables-legacy are in a table of their own in the kernel, as a blob
// (include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h and
// netfilter/x_tables.h of Linux). They are read as rules of nftables, for the same walk.

// legacyLayout is where a family's entries have what.
type legacyLayout struct {
	family nftables.TableFamily
	// address is the length of an address. The source is the first field, then come the destination
	// and both masks, and then the names of both interfaces and their masks.
	address int
	// inverted has the flags of what must not match, flags those of the rule itself.
	protocol, flags, inverted int
	// offsets has the target's from the entry's begin, and the next entry's.
	offsets int
	// matches is where the rule's matches begin.
	matches int
}

var (
	legacy4 = legacyLayout{family: nftables.TableFamilyIPv4, address: 4, protocol: 80, flags: 82, inverted: 83, offsets: 88, matches: 112}
	legacy6 = legacyLayout{family: nftables.TableFamilyIPv6, address: 16, protocol: 128, flags: 131, inverted: 132, offsets: 140, matches: 168}
)

// Flags of a rule and of what it inverts. legacyFragment and legacyGoto are those of IPv4: of IPv6
// the first says that a protocol is set.
const (
	legacyFragment = 0x01
	legacyGoto     = 0x02
	legacyGoto6    = 0x04

	legacyNotIn          = 0x01
	legacyNotOut         = 0x02
	legacyNotSource      = 0x08
	legacyNotDestination = 0x10
)

// Fields of a match or a target: its length, its name, its revision and its content.
const (
	extensionName     = 2
	extensionRevision = 31
	extensionHeader   = 32
)

// Verdicts: -NF_DROP - 1 and so on. Numbers from zero on are the offset of a chain to go to.
const (
	legacyDrop   = -1
	legacyAccept = -2
	legacyReturn = -5
)

// The hook forward's place among a table's hooks.
const hookForward = 2

// legacyTable is a table as the kernel gives it.
type legacyTable struct {
	layout legacyLayout
	// entry and underflow are where the hook's rules begin, and where its policy is.
	entry, underflow uint32
	blob             []byte
}

var errLegacy = errors.New("the kernel's table of iptables-legacy is not as this program expects it; look at iptables-legacy -S FORWARD yourself")

// baseChain is the one at the hook forward.
const baseChain = "FORWARD"

// base is the chain whose policy is asked for; nil where that is to accept.
func (t *legacyTable) base() (*nftables.Chain, error) {
	policy, err := t.at(t.underflow)
	if err != nil {
		return nil, err
	}
	if code, ok := policy.standard(); !ok || code != legacyDrop {
		return nil, nil
	}
	return &nftables.Chain{Name: baseChain, Table: &nftables.Table{Name: filterTable, Family: t.layout.family}}, nil
}

// rules are those of a chain: of the base chain without its policy. Other chains have the offset of
// their first rule as their name, as jumps name them.
func (t *legacyTable) rules(_ *nftables.Table, chain string) ([]*nftables.Rule, error) {
	at := t.entry
	if chain != baseChain {
		if _, err := fmt.Sscan(chain, &at); err != nil {
			return nil, fmt.Errorf("%w: chain %q: %w", errLegacy, chain, err)
		}
	}
	var rules []*nftables.Rule
	for at != t.underflow || chain != baseChain {
		entry, err := t.at(at)
		if err != nil {
			return nil, err
		}
		if entry.targetName() == "ERROR" {
			// The next chain begins here, or the table ends.
			break
		}
		rule, err := entry.rule()
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
		at += uint32(len(entry.bytes))
	}
	return rules, nil
}

func (t *legacyTable) verdicts(*nftables.Table, string) (verdicts, error) {
	return verdicts{}, fmt.Errorf("%w: a verdict map", errLegacy)
}

// legacyEntry is a rule.
type legacyEntry struct {
	layout legacyLayout
	bytes  []byte
	target []byte
}

func (t *legacyTable) at(offset uint32) (legacyEntry, error) {
	l := t.layout
	if uint64(offset)+uint64(l.matches) > uint64(len(t.blob)) {
		return legacyEntry{}, fmt.Errorf("%w: an entry at %d of %d bytes", errLegacy, offset, len(t.blob))
	}
	rest := t.blob[offset:]
	target, next := int(binary.NativeEndian.Uint16(rest[l.offsets:])), int(binary.NativeEndian.Uint16(rest[l.offsets+2:]))
	if target < l.matches || next > len(rest) || target+extensionHeader > next {
		return legacyEntry{}, fmt.Errorf("%w: the entry at %d has its target at %d, and ends at %d", errLegacy, offset, target, next)
	}
	return legacyEntry{layout: l, bytes: rest[:next], target: rest[target:next]}, nil
}

func (e *legacyEntry) targetName() string { return extensionNameOf(e.target) }

func extensionNameOf(extension []byte) string {
	name, _, _ := bytes.Cut(extension[extensionName:extensionRevision], []byte{0})
	return string(name)
}

// standard is the verdict of a standard target: negative, or the offset of a chain.
func (e *legacyEntry) standard() (int32, bool) {
	if e.targetName() != "" || len(e.target) < extensionHeader+4 {
		return 0, false
	}
	return int32(binary.NativeEndian.Uint32(e.target[extensionHeader:])), true
}

// rule is the entry as one of nftables.
func (e *legacyEntry) rule() (*nftables.Rule, error) {
	l := e.layout
	inverted := e.bytes[l.inverted]
	exprs := e.address(0, inverted&legacyNotSource != 0)
	exprs = append(exprs, e.address(1, inverted&legacyNotDestination != 0)...)
	exprs = append(exprs, e.interfaceName(0, expr.MetaKeyIIFNAME, inverted&legacyNotIn != 0)...)
	exprs = append(exprs, e.interfaceName(1, expr.MetaKeyOIFNAME, inverted&legacyNotOut != 0)...)
	flags, isGoto := e.bytes[l.flags], false
	if l.family == nftables.TableFamilyIPv4 {
		isGoto = flags&legacyGoto != 0
	} else {
		isGoto = flags&legacyGoto6 != 0
	}
	isFragment := l.family == nftables.TableFamilyIPv4 && flags&legacyFragment != 0
	if binary.NativeEndian.Uint16(e.bytes[l.protocol:]) != 0 || isFragment {
		// Of a packet's protocol nothing is known.
		exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Register: 1, Data: []byte{0}})
	}
	matches, err := e.extensions()
	if err != nil {
		return nil, err
	}
	return &nftables.Rule{Exprs: append(append(exprs, matches...), e.verdict(isGoto)...)}, nil
}

// address compares the address with a number, under its mask.
func (e *legacyEntry) address(number int, inverted bool) []expr.Any {
	length := e.layout.address
	value, mask := e.bytes[number*length:][:length], e.bytes[(2+number)*length:][:length]
	first := 8
	if length == 4 {
		first = 12
	}
	return comparison(&expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: 1, Base: expr.PayloadBaseNetworkHeader,
		Offset: uint32(first + number*length), Len: uint32(length),
	}, value, mask, inverted)
}

// interfaceName compares the name of an interface, of which the mask may leave out the end.
func (e *legacyEntry) interfaceName(number int, key expr.MetaKey, inverted bool) []expr.Any {
	names := e.bytes[4*e.layout.address:]
	value, mask := names[number*unix.IFNAMSIZ:][:unix.IFNAMSIZ], names[(2+number)*unix.IFNAMSIZ:][:unix.IFNAMSIZ]
	return comparison(&expr.Meta{Key: key, Register: 1}, value, mask, inverted)
}

// comparison is nothing where the mask leaves out all.
func comparison(load expr.Any, value, mask []byte, inverted bool) []expr.Any {
	if len(bytes.Trim(mask, "\x00")) == 0 && !inverted {
		return nil
	}
	op := expr.CmpOpEq
	if inverted {
		op = expr.CmpOpNeq
	}
	// A name that only begins so has a plus behind, which the mask leaves out.
	wanted := make([]byte, len(value))
	for i := range value {
		wanted[i] = value[i] & mask[i]
	}
	return []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
		&expr.Cmp{Op: op, Register: 1, Data: wanted},
	}
}

// extensions are the rule's matches.
func (e *legacyEntry) extensions() ([]expr.Any, error) {
	var all []expr.Any
	rest := e.bytes[e.layout.matches : len(e.bytes)-len(e.target)]
	for len(rest) > 0 {
		length := 0
		if len(rest) >= extensionHeader {
			length = int(binary.NativeEndian.Uint16(rest))
		}
		if length < extensionHeader || length > len(rest) {
			return nil, fmt.Errorf("%w: a match of %d bytes where there are %d", errLegacy, length, len(rest))
		}
		name, revision := extensionNameOf(rest), uint32(rest[extensionRevision])
		info, err := xt.Unmarshal(name, xt.TableFamily(e.layout.family), revision, rest[extensionHeader:length])
		if err != nil {
			return nil, fmt.Errorf("read match %s: %w", name, err)
		}
		all = append(all, &expr.Match{Name: name, Rev: revision, Info: info})
		rest = rest[length:]
	}
	return all, nil
}

// verdict is what the target comes to.
func (e *legacyEntry) verdict(isGoto bool) []expr.Any {
	code, ok := e.standard()
	if !ok {
		return []expr.Any{&expr.Target{Name: e.targetName()}}
	}
	verdict := &expr.Verdict{Kind: expr.VerdictQueue}
	switch {
	case code >= 0:
		verdict.Kind, verdict.Chain = expr.VerdictJump, fmt.Sprint(code)
		if isGoto {
			verdict.Kind = expr.VerdictGoto
		}
	case code == legacyReturn:
		verdict.Kind = expr.VerdictReturn
	case code == legacyDrop:
		verdict.Kind = expr.VerdictDrop
	case code == legacyAccept:
		verdict.Kind = expr.VerdictAccept
	}
	return []expr.Any{verdict}
}

// droppingLegacy is as Dropping, of the table filter of iptables-legacy or ip6tables-legacy.
func droppingLegacy(packet *Packet) ([]string, error) {
	read, tool := readLegacy4, "iptables-legacy"
	if !packet.is4() {
		read, tool = readLegacy6, "ip6tables-legacy"
	}
	table, err := read()
	if err != nil || table == nil {
		return nil, err
	}
	chain, err := table.base()
	if err != nil || chain == nil {
		return nil, err
	}
	drops, err := policyDrops(packet, chain, table)
	if err != nil || !drops {
		return nil, err
	}
	return []string{strings.Join([]string{tool, chain.Table.Name, chain.Name}, " ")}, nil
}
