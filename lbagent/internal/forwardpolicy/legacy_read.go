// SPDX-License-Identifier: Apache-2.0

package forwardpolicy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options of sockets that read a table (IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES).
const (
	getInfo    = 64
	getEntries = 65
)

// legacyInfo is struct ipt_getinfo. Hooks are in the order of enum nf_inet_hooks.
type legacyInfo struct {
	Name       [32]byte
	ValidHooks uint32
	Entries    [5]uint32
	Underflows [5]uint32
	Count      uint32
	// Size is that of all entries, in bytes.
	Size uint32
}

// entriesHeader is what struct ipt_get_entries has in front of the entries: the table's name, their
// size, and nothing up to a multiple of eight.
const entriesHeader = 40

const filterTable = "filter"

// attempts is how often a table is read that changes meanwhile.
const attempts = 5

func readLegacy4() (*legacyTable, error) {
	return readLegacy("/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, legacy4)
}

func readLegacy6() (*legacyTable, error) {
	return readLegacy("/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, legacy6)
}

// readLegacy reads the table filter. It returns nil where the network namespace has none: asking
// the kernel for it would make one.
func readLegacy(names string, domain, level int, layout legacyLayout) (*legacyTable, error) {
	tables, err := os.ReadFile(names)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	if !slices.Contains(strings.Fields(string(tables)), filterTable) {
		return nil, nil
	}
	socket, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket to read iptables-legacy: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	for range attempts {
		var table *legacyTable
		if table, err = readEntries(socket, level, layout); !errors.Is(err, unix.EAGAIN) {
			return table, err
		}
	}
	return nil, err
}

// readEntries returns EAGAIN where the table changed between its two questions.
func readEntries(socket, level int, layout legacyLayout) (*legacyTable, error) {
	info := make([]byte, binary.Size(legacyInfo{}))
	copy(info, filterTable)
	if err := getOption(socket, level, getInfo, info); err != nil {
		return nil, fmt.Errorf("ask for the size of table %s of iptables-legacy (needs CAP_NET_ADMIN): %w", filterTable, err)
	}
	var about legacyInfo
	if _, err := binary.Decode(info, binary.NativeEndian, &about); err != nil {
		return nil, err
	}
	entries := make([]byte, entriesHeader+int(about.Size))
	copy(entries, filterTable)
	binary.NativeEndian.PutUint32(entries[len(about.Name):], about.Size)
	if err := getOption(socket, level, getEntries, entries); err != nil {
		return nil, fmt.Errorf("read table %s of iptables-legacy: %w", filterTable, err)
	}
	return &legacyTable{
		layout: layout, blob: entries[entriesHeader:],
		entry: about.Entries[hookForward], underflow: about.Underflows[hookForward],
	}, nil
}

// getOption reads an option of a socket into value, which has what is asked for.
func getOption(socket, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&length)), 0)
	if code != 0 {
		return code
	}
	return nil
}
