// SPDX-License-Identifier: Apache-2.0

// Package natexempt exempts replies of VIPs from a CNI's source NAT with an nftables rule, for connections
// that the kernel's connection table lacks (docs/design/replies.md). The rule outlives the process until
// Remove. It requires CAP_NET_ADMIN, nft_compat and xt_bpf.
package natexempt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

const (
	// Table is the name of the tables for ip and ip6, which only Millrace uses.
	Table = "millrace"
	chain = "replies"

	// priority precedes srcnat, the priority of CNIs and kube-proxy, because the first NAT decision of a
	// connection is final.
	priority = 90
)

// struct xt_bpf_info_v1 (linux/netfilter/xt_bpf.h): __u16 mode, __u16 length of a classic program, __s32
// fd, 512 bytes for that program or a path, and a kernel pointer.
const (
	infoSize    = 528
	infoMode    = 0
	infoFD      = 4
	modeELF     = 2
	xtBPF       = "bpf"
	xtRevision  = 1
	sourceReg   = 1
	sourceIPv4  = 12
	sourceIPv6  = 8
	ipv6Enabled = "/proc/net/if_inet6"
)

type family struct {
	table          *nftables.Table
	offset, length uint32
}

func families() []family {
	all := []family{{
		table:  &nftables.Table{Name: Table, Family: nftables.TableFamilyIPv4},
		offset: sourceIPv4, length: 4,
	}}
	// The kernel may run without IPv6.
	if _, err := os.Stat(ipv6Enabled); err == nil {
		all = append(all, family{
			table:  &nftables.Table{Name: Table, Family: nftables.TableFamilyIPv6},
			offset: sourceIPv6, length: 16,
		})
	}
	return all
}

func (f family) name() string {
	if f.length == 4 {
		return "ip"
	}
	return "ip6"
}

func (f family) chain() *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	return &nftables.Chain{
		Name:     chain,
		Table:    f.table,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(priority),
		Policy:   &policy,
	}
}

// rule returns a rule that sets the source to itself if the filter matches.
func (f family) rule(chain *nftables.Chain, filter int) *nftables.Rule {
	info := make(xt.Unknown, infoSize)
	binary.NativeEndian.PutUint16(info[infoMode:], modeELF)
	binary.NativeEndian.PutUint32(info[infoFD:], uint32(filter))
	protocol := uint32(unix.NFPROTO_IPV4)
	if f.length != 4 {
		protocol = unix.NFPROTO_IPV6
	}
	return &nftables.Rule{Table: f.table, Chain: chain, Exprs: []expr.Any{
		&expr.Match{Name: xtBPF, Rev: xtRevision, Info: &info},
		&expr.Counter{},
		&expr.Payload{
			DestRegister: sourceReg, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset, Len: f.length,
		},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: protocol, RegAddrMin: sourceReg},
	}}
}

// Install atomically replaces the rule. filter is the descriptor of a program (dataplane.NATExempt), which
// the rule keeps loaded.
func Install(filter int) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("query nftables: %w", err)
	}
	var errs []error
	for _, f := range families() {
		// Deleting a missing table would fail.
		conn.AddTable(f.table)
		conn.DelTable(f.table)
		conn.AddTable(f.table)
		chain := conn.AddChain(f.chain())
		conn.AddRule(f.rule(chain, filter))
		if err := conn.Flush(); err != nil {
			errs = append(errs, fmt.Errorf("add the rule of table %s %s: %w; has the kernel nf_tables, nft_compat and xt_bpf?",
				f.name(), Table, err))
		}
	}
	return errors.Join(errs...)
}

// Installed reports whether the rule exists in all families. Other programs may flush it.
func Installed() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("query nftables: %w", err)
	}
	for _, f := range families() {
		rules, err := conn.GetRules(f.table, f.chain())
		if errors.Is(err, unix.ENOENT) || err == nil && len(rules) == 0 {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list table %s %s: %w", f.name(), Table, err)
		}
	}
	return true, nil
}

// Remove deletes the tables, if they exist.
func Remove() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("query nftables: %w", err)
	}
	var errs []error
	for _, f := range families() {
		conn.DelTable(f.table)
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete table %s %s: %w", f.name(), Table, err))
		}
	}
	return errors.Join(errs...)
}

// Exists reports whether any of the tables exists.
func Exists() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("query nftables: %w", err)
	}
	for _, f := range families() {
		tables, err := conn.ListTablesOfFamily(f.table.Family)
		if err != nil {
			return false, fmt.Errorf("list the tables of %s: %w", f.name(), err)
		}
		for _, table := range tables {
			if table.Name == Table {
				return true, nil
			}
		}
	}
	return false, nil
}
