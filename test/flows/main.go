// SPDX-License-Identifier: Apache-2.0

// Command flows reads the pinned maps and links of a node: it counts and deletes recorded flows and prints
// the tags of attached programs. It runs on the node (bin/lab exec NODE -- bin/flows wipe).
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

const pinRoot = "/sys/fs/bpf/millrace"

type node struct{ root string }

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	n := node{root: pinRoot}
	commands := map[string]func(io.Writer, []string) error{"count": n.count, "wipe": n.wipe, "programs": n.programs}
	run := func(io.Writer, []string) error { return errUsage }
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		run = commands[os.Args[1]]
	}
	err := run(os.Stdout, os.Args[min(2, len(os.Args)):])
	if errors.Is(err, errUsage) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitUsage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flows:", err)
		os.Exit(exitFailure)
	}
}

var errUsage = errors.New("usage: flows count|wipe [PREFIX…] | flows programs")

// exceptions is the only table of flows that is an array; non-zero places count as entries.
const exceptions = "exceptions"

// eachTable calls f for every LRU table, which hold state learned from packets, with one of the prefixes,
// if any.
func (n node) eachTable(prefixes []string, f func(name string, table *ebpf.Map) error) error {
	directory := filepath.Join(n.root, "maps")
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("list the maps: %w: does Millrace run on this node?", err)
	}
	for _, entry := range entries {
		if !hasAnyPrefix(entry.Name(), prefixes) {
			continue
		}
		table, err := ebpf.LoadPinnedMap(filepath.Join(directory, entry.Name()), nil)
		if err != nil {
			return fmt.Errorf("open map %s: %w", entry.Name(), err)
		}
		if table.Type() == ebpf.LRUHash || table.Type() == ebpf.LRUCPUHash || entry.Name() == exceptions {
			err = f(entry.Name(), table)
		}
		if err := errors.Join(err, table.Close()); err != nil {
			return fmt.Errorf("map %s: %w", entry.Name(), err)
		}
	}
	return nil
}

func hasAnyPrefix(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return len(prefixes) == 0
}

// keys may return duplicates, because the kernel restarts the iteration if the current key is deleted.
func keys(table *ebpf.Map) ([][]byte, error) {
	var all [][]byte
	var key []byte
	for {
		next, err := table.NextKeyBytes(keyOrNil(key))
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		if next == nil || len(all) > 2*int(table.MaxEntries()) {
			return all, nil
		}
		key = next
		if table.Type() == ebpf.Array {
			value, err := table.LookupBytes(key)
			if err != nil {
				return nil, fmt.Errorf("read an entry: %w", err)
			}
			if bytes.Equal(value, make([]byte, len(value))) {
				continue
			}
		}
		all = append(all, next)
	}
}

// keyOrNil avoids a non-nil interface with a nil slice.
func keyOrNil(key []byte) any {
	if key == nil {
		return nil
	}
	return key
}

func (n node) count(stdout io.Writer, prefixes []string) error {
	counts := map[string]int{}
	err := n.eachTable(prefixes, func(name string, table *ebpf.Map) error {
		all, err := keys(table)
		counts[name] = len(all)
		return err
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(counts)
}

// wipe deletes all entries and prints their numbers. Packets may create new entries meanwhile.
func (n node) wipe(stdout io.Writer, prefixes []string) error {
	counts := map[string]int{}
	err := n.eachTable(prefixes, func(name string, table *ebpf.Map) error {
		all, err := keys(table)
		if err != nil {
			return err
		}
		for _, key := range all {
			switch err := remove(table, key); {
			case err == nil:
				counts[name]++
			case !errors.Is(err, ebpf.ErrKeyNotExist):
				return fmt.Errorf("delete an entry: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(counts)
}

func remove(table *ebpf.Map, key []byte) error {
	if table.Type() == ebpf.Array {
		return table.Put(key, make([]byte, table.ValueSize()))
	}
	return table.Delete(key)
}

// programs prints the tag of each pinned link's program, a hash of its instructions.
func (n node) programs(stdout io.Writer, _ []string) error {
	directory := filepath.Join(n.root, "links")
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("list the links: %w: does Millrace run on this node?", err)
	}
	tags := map[string]string{}
	for _, entry := range entries {
		tag, err := tagOf(filepath.Join(directory, entry.Name()))
		if err != nil {
			return fmt.Errorf("link %s: %w", entry.Name(), err)
		}
		tags[entry.Name()] = tag
	}
	return json.NewEncoder(stdout).Encode(tags)
}

func tagOf(pin string) (string, error) {
	pinned, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return "", err
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return "", err
	}
	program, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return "", err
	}
	defer program.Close()
	about, err := program.Info()
	if err != nil {
		return "", err
	}
	return about.Tag, nil
}
