// SPDX-License-Identifier: Apache-2.0

// Package forwardpolicy finds nftables base chains at the hook forward, including those of iptables-nft,
// whose policy drops packets to pods because no rule accepts them. It only reads, and needs CAP_NET_ADMIN.
package forwardpolicy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Dropping returns the base chains whose policy drops the packet, such as "ip filter FORWARD". A chain
// with a rule that may accept the packet is not included.
func Dropping(packet *Packet) ([]string, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("query nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	var found []string
	var errs []error
	for _, chain := range chains {
		if !concerns(chain, packet) {
			continue
		}
		drops, err := policyDrops(packet, chain, kernel{conn})
		if err != nil {
			errs = append(errs, fmt.Errorf("read chain %s: %w", nameOf(chain), err))
		} else if drops {
			found = append(found, nameOf(chain))
		}
	}
	return found, errors.Join(errs...)
}

func concerns(chain *nftables.Chain, packet *Packet) bool {
	if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward ||
		chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
		return false
	}
	switch chain.Table.Family {
	case nftables.TableFamilyINet:
		return true
	case nftables.TableFamilyIPv4:
		return packet.is4()
	case nftables.TableFamilyIPv6:
		return !packet.is4()
	default:
		return false
	}
}

func nameOf(chain *nftables.Chain) string {
	family := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	}[chain.Table.Family]
	return fmt.Sprintf("%s %s %s", family, chain.Table.Name, chain.Name)
}

type kernel struct{ conn *nftables.Conn }

func (k kernel) rules(table *nftables.Table, chain string) ([]*nftables.Rule, error) {
	return k.conn.GetRules(table, &nftables.Chain{Table: table, Name: chain})
}

func (k kernel) verdicts(table *nftables.Table, name string) (verdicts, error) {
	set, err := k.conn.GetSetByName(table, name)
	if err != nil {
		return verdicts{}, err
	}
	elements, err := k.conn.GetSetElements(set)
	if err != nil {
		return verdicts{}, err
	}
	found := verdicts{exact: !set.Interval && !set.Concatenation}
	for i := range elements {
		if element := &elements[i]; !element.IntervalEnd {
			found.entries = append(found.entries, verdictEntry{element.Key, parseVerdict(element.Val)})
		}
	}
	return found, nil
}

// parseVerdict parses netlink attributes: NFTA_VERDICT_CODE, and NFTA_VERDICT_CHAIN of a jump. An invalid
// attribute becomes VerdictQueue, which counts as accepting.
func parseVerdict(attributes []byte) expr.Verdict {
	const header = 4
	verdict := expr.Verdict{Kind: expr.VerdictQueue}
	for len(attributes) >= header {
		length := int(binary.NativeEndian.Uint16(attributes))
		if length < header || length > len(attributes) {
			break
		}
		switch value := attributes[header:length]; binary.NativeEndian.Uint16(attributes[2:]) {
		case unix.NFTA_VERDICT_CODE:
			if len(value) == 4 {
				verdict.Kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(value)))
			}
		case unix.NFTA_VERDICT_CHAIN:
			verdict.Chain = string(bytes.TrimRight(value, "\x00"))
		}
		attributes = attributes[min((length+3)&^3, len(attributes)):]
	}
	return verdict
}
