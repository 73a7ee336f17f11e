// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

var tools = []string{"ip", "ethtool", "nft", "iptables-legacy", "ip6tables-legacy"}

// initramfs is a cpio archive in the newc format (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst).
type initramfs struct {
	bytes.Buffer
	inode       int
	directories map[string]bool
}

const (
	modeFile   = 0o100755
	modeFolder = 0o040755
)

func (a *initramfs) entry(name string, mode int, content []byte) {
	a.inode++
	links := 1
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *initramfs) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

func (a *initramfs) directory(name string) {
	if name == "." || name == "/" || a.directories[name] {
		return
	}
	a.directory(path.Dir(name))
	a.directories[name] = true
	a.entry(name, modeFolder, nil)
}

func (a *initramfs) file(name string, content []byte) {
	name = strings.TrimPrefix(name, "/")
	a.directory(path.Dir(name))
	a.entry(name, modeFile, content)
}

func (a *initramfs) copy(name, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("build the initial file system: %w", err)
	}
	a.file(name, content)
	return nil
}

func newInitramfs(ctx context.Context, directory string, kernel *image, arguments []string) ([]byte, error) {
	a := &initramfs{directories: map[string]bool{}}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run"} {
		a.directory(name)
	}
	if err := a.copy("init", filepath.Join(directory, "init")); err != nil {
		return nil, err
	}
	for i, m := range kernel.modules {
		a.file(fmt.Sprintf("modules/%02d-%s.ko", i, m.name), m.content)
	}
	for i, pkg := range suite {
		// The initial process runs them in this order, each in its package's directory.
		if err := a.copy(fmt.Sprintf("tests/%02d/%s", i, pkg), filepath.Join(directory, programOf(pkg))); err != nil {
			return nil, err
		}
		if err := a.tree(filepath.Join(pkg, "testdata"), path.Join("source", pkg, "testdata")); err != nil {
			return nil, err
		}
		a.directory(path.Join("source", pkg))
	}
	a.file("arguments", []byte(strings.Join(arguments, "\n")))
	if err := a.tools(ctx); err != nil {
		return nil, err
	}
	a.entry("TRAILER!!!", 0, nil)
	return a.Bytes(), nil
}

func (a *initramfs) tree(from, to string) error {
	if _, err := os.Stat(from); os.IsNotExist(err) {
		return nil
	}
	return filepath.WalkDir(from, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rest, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		return a.copy(path.Join(to, rest), name)
	})
}

func (a *initramfs) tools(ctx context.Context) error {
	done := map[string]bool{}
	for _, tool := range tools {
		program, err := exec.LookPath(tool)
		if err != nil {
			return fmt.Errorf("find %s: %w; run hack/prerequisites.sh --kernels", tool, err)
		}
		libraries, err := exec.CommandContext(ctx, "ldd", program).Output()
		if err != nil {
			return fmt.Errorf("find the libraries of %s: %w", program, err)
		}
		if err := a.copy("bin/"+tool, program); err != nil {
			return err
		}
		// Lines are "name => path (address)" or "path (address)".
		for _, field := range strings.Fields(string(libraries)) {
			if strings.HasPrefix(field, "/") && !done[field] {
				done[field] = true
				if err := a.copy(field, field); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
