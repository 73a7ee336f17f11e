// SPDX-License-Identifier: Apache-2.0

package forwardpolicy

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Packet is a forwarded packet without ports and protocol, which are unknown.
type Packet struct {
	In, Out string
	// Source and Destination are invalid if unknown. One of them is known.
	Source, Destination netip.Addr
	// Established is true for a reply in a connection, false for its first packet.
	Established bool
}

func (p *Packet) is4() bool { return p.Source.Is4() || p.Destination.Is4() }

type ruleset interface {
	rules(table *nftables.Table, chain string) ([]*nftables.Rule, error)
	verdicts(table *nftables.Table, set string) (verdicts, error)
}

// verdicts is a verdict map. If exact is false, its keys are ranges or concatenations.
type verdicts struct {
	exact   bool
	entries []verdictEntry
}

type verdictEntry struct {
	key     []byte
	verdict expr.Verdict
}

// match reports whether a packet matches. An unknown property may match.
type match int

const (
	no match = iota
	maybe
	yes
)

func matches(is bool) match {
	if is {
		return yes
	}
	return no
}

type outcome struct {
	mayAccept bool
	mayReturn bool
}

const (
	// maxDepth is the maximum depth of jumps in the kernel (NFT_JUMP_STACK_SIZE).
	maxDepth = 16
	// maxRules limits a walk, because jumps can multiply the evaluated rules.
	maxRules = 1 << 18
)

// walk evaluates a base chain for a packet. Undecidable rules count as accepting: a missing report is
// better than a false one.
type walk struct {
	packet *Packet
	from   ruleset
	// marked is true if a rule may have set the packet's mark, which is initially zero.
	marked    bool
	passed    int
	registers map[uint32][]byte
}

func policyDrops(packet *Packet, chain *nftables.Chain, from ruleset) (bool, error) {
	w := walk{packet: packet, from: from}
	result, err := w.chain(chain.Table, chain.Name, 0)
	return err == nil && !result.mayAccept && result.mayReturn, err
}

func (w *walk) chain(table *nftables.Table, name string, depth int) (outcome, error) {
	if depth > maxDepth {
		return outcome{mayAccept: true}, nil
	}
	rules, err := w.from.rules(table, name)
	if err != nil {
		return outcome{}, err
	}
	for _, rule := range rules {
		if w.passed++; w.passed > maxRules {
			return outcome{mayAccept: true}, nil
		}
		result, ends, err := w.rule(table, rule, depth)
		if err != nil || ends || result.mayAccept {
			return result, err
		}
	}
	return outcome{mayReturn: true}, nil
}

// rule evaluates a rule; ends is true if the chain certainly ends with it.
func (w *walk) rule(table *nftables.Table, rule *nftables.Rule, depth int) (result outcome, ends bool, err error) {
	w.registers = map[uint32][]byte{}
	matched := yes
	for _, e := range rule.Exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			return w.verdict(table, e, matched, depth)
		case *expr.Lookup:
			if e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT {
				return w.verdictMap(table, e, matched, depth)
			}
			matched = min(matched, maybe)
		case *expr.Reject:
			return outcome{}, matched == yes, nil
		case *expr.Queue:
			return outcome{mayAccept: true}, true, nil
		case *expr.Target:
			switch e.Name {
			case "REJECT", "DROP":
				return outcome{}, matched == yes, nil
			case "NFQUEUE":
				return outcome{mayAccept: true}, true, nil
			case "MARK", "CONNMARK":
				w.marked = true
			}
		default:
			matched = min(matched, w.expression(e))
		}
		if matched == no {
			return outcome{}, false, nil
		}
	}
	return outcome{}, false, nil
}

func (w *walk) verdict(table *nftables.Table, v *expr.Verdict, matched match, depth int) (result outcome, ends bool, err error) {
	switch v.Kind {
	case expr.VerdictAccept, expr.VerdictQueue, expr.VerdictStolen, expr.VerdictRepeat, expr.VerdictStop:
		return outcome{mayAccept: true}, true, nil
	case expr.VerdictDrop:
		return outcome{}, matched == yes, nil
	case expr.VerdictReturn:
		return outcome{mayReturn: true}, matched == yes, nil
	case expr.VerdictJump, expr.VerdictGoto:
		result, err := w.chain(table, v.Chain, depth+1)
		ends := matched == yes && (v.Kind == expr.VerdictGoto || !result.mayReturn)
		return result, ends, err
	default:
		return outcome{}, false, nil
	}
}

// verdictMap evaluates the verdict of the known key, or of every key.
func (w *walk) verdictMap(table *nftables.Table, lookup *expr.Lookup, matched match, depth int) (outcome, bool, error) {
	found, err := w.from.verdicts(table, lookup.SetName)
	if err != nil {
		return outcome{}, false, err
	}
	key, known := w.registers[lookup.SourceRegister]
	known = known && found.exact
	for i := range found.entries {
		entry := &found.entries[i]
		if known && !bytes.Equal(key, entry.key) {
			continue
		}
		if !known {
			matched = min(matched, maybe)
		}
		result, ends, err := w.verdict(table, &entry.verdict, matched, depth)
		if err != nil || ends || result.mayAccept {
			return result, ends, err
		}
	}
	return outcome{}, false, nil
}

func (w *walk) expression(e expr.Any) match {
	switch e := e.(type) {
	case *expr.Meta:
		if e.SourceRegister {
			w.marked = w.marked || e.Key == expr.MetaKeyMARK
			return yes
		}
		w.load(e.Register, w.meta(e.Key))
	case *expr.Ct:
		if e.SourceRegister {
			return yes
		}
		w.load(e.Register, w.conntrack(e.Key))
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			w.load(e.DestRegister, w.header(e))
		}
	case *expr.Bitwise:
		w.load(e.DestRegister, masked(w.registers[e.SourceRegister], e))
	case *expr.Cmp:
		return compare(w.registers[e.Register], e)
	case *expr.Match:
		return w.extension(e)
	case *expr.Counter, *expr.Log, *expr.Immediate, *expr.Notrack, *expr.FlowOffload, *expr.Objref:
	default:
		return maybe
	}
	return yes
}

func (w *walk) load(register uint32, value []byte) {
	delete(w.registers, register)
	if value != nil {
		w.registers[register] = value
	}
}

func (w *walk) meta(key expr.MetaKey) []byte {
	switch key {
	case expr.MetaKeyIIFNAME:
		return interfaceName(w.packet.In)
	case expr.MetaKeyOIFNAME:
		return interfaceName(w.packet.Out)
	case expr.MetaKeyMARK:
		if !w.marked {
			return make([]byte, 4)
		}
	case expr.MetaKeyNFPROTO:
		if w.packet.is4() {
			return []byte{unix.NFPROTO_IPV4}
		}
		return []byte{unix.NFPROTO_IPV6}
	}
	return nil
}

// interfaceName returns a name as in a register, padded with zeros to IFNAMSIZ.
func interfaceName(name string) []byte {
	if name == "" {
		return nil
	}
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

func (w *walk) state() uint32 {
	if w.packet.Established {
		return expr.CtStateBitESTABLISHED
	}
	return expr.CtStateBitNEW
}

func (w *walk) conntrack(key expr.CtKey) []byte {
	if key != expr.CtKeySTATE {
		return nil
	}
	return binary.NativeEndian.AppendUint32(nil, w.state())
}

func (w *walk) header(payload *expr.Payload) []byte {
	if payload.Base != expr.PayloadBaseNetworkHeader {
		return nil
	}
	source, destination := uint32(8), uint32(24)
	if w.packet.is4() {
		source, destination = 12, 16
	}
	for at, address := range map[uint32]netip.Addr{source: w.packet.Source, destination: w.packet.Destination} {
		bytes := address.AsSlice()
		if payload.Offset >= at && payload.Offset+payload.Len <= at+uint32(len(bytes)) {
			return bytes[payload.Offset-at:][:payload.Len]
		}
	}
	return nil
}

func masked(value []byte, bitwise *expr.Bitwise) []byte {
	if value == nil || len(bitwise.Mask) == 0 || len(bitwise.Mask) > len(value) || len(bitwise.Xor) != len(bitwise.Mask) {
		return nil
	}
	result := make([]byte, len(bitwise.Mask))
	for i := range result {
		result[i] = value[i]&bitwise.Mask[i] ^ bitwise.Xor[i]
	}
	return result
}

func compare(value []byte, cmp *expr.Cmp) match {
	if value == nil || len(cmp.Data) > len(value) {
		return maybe
	}
	switch equal := bytes.HasPrefix(value, cmp.Data); cmp.Op {
	case expr.CmpOpEq:
		return matches(equal)
	case expr.CmpOpNeq:
		return matches(!equal)
	default:
		return maybe
	}
}

func (w *walk) extension(e *expr.Match) match {
	switch info := e.Info.(type) {
	case *xt.Comment:
		return yes
	case *xt.ConntrackMtinfo1:
		return w.ctState(&info.ConntrackMtinfoBase, uint16(info.StateMask))
	case *xt.ConntrackMtinfo2:
		return w.ctState(&info.ConntrackMtinfoBase, info.StateMask)
	case *xt.ConntrackMtinfo3:
		return w.ctState(&info.ConntrackMtinfoBase, info.StateMask)
	case *xt.Unknown:
		// struct xt_mark_mtinfo1: mark, mask, invert.
		if e.Name == "mark" && len(*info) >= 9 && !w.marked {
			zero := binary.NativeEndian.Uint32(*info) == 0
			return matches(zero != ((*info)[8] != 0))
		}
	}
	return maybe
}

func (w *walk) ctState(info *xt.ConntrackMtinfoBase, mask uint16) match {
	const stateFlags = uint16(xt.ConntrackState | xt.ConntrackStateAlias)
	if info.MatchFlags&stateFlags == 0 {
		return maybe
	}
	if equal := uint32(mask)&w.state() != 0; equal == (info.InvertFlags&stateFlags != 0) {
		return no
	}
	if info.MatchFlags&^stateFlags != 0 {
		return maybe
	}
	return yes
}
