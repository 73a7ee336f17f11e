// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// guard intercepts this process's bpf(2) calls that write maps, by a seccomp(2) user notification filter, so
// that the real code faces failures of the kernel. The filter remains until the process ends.
type guard struct {
	listener int

	mu sync.Mutex
	// refuses selects the failing calls; nil means none.
	refuses func(writeCall) bool
	broken  error
}

// writeCall describes a call: the map's name as stored in the kernel, or "" for a program run.
type writeCall struct {
	command uint64
	name    string
}

const errRefused = unix.ENOMEM

// The bpf(2) commands with which the agent writes maps; the last one runs its programs.
var writeCommands = []uint32{unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_MAP_UPDATE_BATCH, unix.BPF_MAP_DELETE_BATCH, unix.BPF_PROG_TEST_RUN}

func newGuard(t *testing.T) *guard {
	t.Helper()
	const (
		number = 0
		// The low half of the first argument, on little endian.
		argument = 16
		waits    = unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	unlessEqual := func(value uint32, skip int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: uint8(skip)}
	}
	filter := []unix.SockFilter{load(number), unlessEqual(unix.SYS_BPF, 1+2*len(writeCommands)), load(argument)}
	for _, command := range writeCommands {
		filter = append(filter, unlessEqual(command, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
	}
	filter = append(filter, ret(unix.SECCOMP_RET_ALLOW))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH|waits,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		t.Fatalf("install the seccomp filter: %v", errno)
	}
	g := &guard{listener: int(listener)}
	go g.answer()
	return g
}

// notification and response are struct seccomp_notif and seccomp_notif_resp.
type (
	notification struct {
		id           uint64
		thread       uint32
		_            uint32
		_            int32
		_            uint32
		_            uint64
		command      uint64
		attributes   uint64
		_, _, _, end uint64
	}
	response struct {
		id    uint64
		_     int64
		errno int32
		flags uint32
	}
)

func (g *guard) answer() {
	for {
		var asked notification
		if err := g.control(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&asked)); err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
				continue
			}
			g.fail(fmt.Errorf("receive a system call: %w", err))
			return
		}
		said := response{id: asked.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if g.decide(&asked) {
			said = response{id: asked.id, errno: -int32(errRefused)}
		}
		if err := g.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&said)); err != nil && !errors.Is(err, unix.ENOENT) {
			g.fail(fmt.Errorf("respond to a system call: %w", err))
			return
		}
	}
}

func (g *guard) control(request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(g.listener), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

func (g *guard) fail(err error) {
	g.mu.Lock()
	g.broken = err
	g.mu.Unlock()
	_ = unix.Close(g.listener)
}

func (g *guard) decide(asked *notification) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refuses != nil && g.refuses(writeCall{command: asked.command, name: mapName(asked)})
}

// mapName returns the map of a call from union bpf_attr, or "" if unreadable.
func mapName(asked *notification) string {
	offset := uintptr(0)
	switch asked.command {
	case unix.BPF_PROG_TEST_RUN:
		return ""
	case unix.BPF_MAP_UPDATE_BATCH, unix.BPF_MAP_DELETE_BATCH:
		offset = 36
	}
	var word [4]byte
	local := []unix.Iovec{{Base: &word[0], Len: uint64(len(word))}}
	remote := []unix.RemoteIovec{{Base: uintptr(asked.attributes) + offset, Len: len(word)}}
	if n, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); err != nil || n != len(word) {
		return ""
	}
	descriptor, err := unix.Dup(int(binary.NativeEndian.Uint32(word[:])))
	if err != nil {
		return ""
	}
	m, err := ebpf.NewMapFromFD(descriptor)
	if err != nil {
		return ""
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// during runs do with the calls selected by refuses failing.
func (g *guard) during(refuses func(writeCall) bool, do func() error) error {
	g.set(refuses)
	defer g.set(nil)
	err := do()
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(err, g.broken)
}

func (g *guard) set(refuses func(writeCall) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuses = refuses
}
