// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

type kernel struct{ name, pkg, version, sha256, sha1 string }

func readKernels(file string) ([]kernel, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the list of kernels: %w; run from the project's directory", err)
	}
	var all []kernel
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 5 {
			return nil, fmt.Errorf("%s: %q has %d fields, want 5", file, line, len(fields))
		}
		all = append(all, kernel{name: fields[0], pkg: fields[1], version: fields[2], sha256: fields[3], sha1: fields[4]})
	}
	return all, nil
}

// modules are required by the tests and not built into all Debian kernels; dependencies are added.
var modules = []string{"veth", "tun", "bridge", "bonding", "8021q", "sch_ingress", "cls_bpf", "cls_u32",
	"crc32c_generic", "nft_chain_nat", "nft_masq", "iptable_filter", "ip6table_filter", "openvswitch", "virtio_pci", "virtio_net"}

type image struct {
	vmlinuz []byte
	// builtin is modules.builtin: paths of built-in modules, one per line.
	builtin []byte
	// modules are in load order.
	modules []module
}

type module struct {
	name    string
	content []byte
}

// open reads the package, which is cached in the user's cache directory.
func (k kernel) open(ctx context.Context) (*image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the cache directory: %w; set XDG_CACHE_HOME", err)
	}
	file, err := k.cached(ctx, filepath.Join(cache, "millrace-kernels"), sources())
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", k.name, err)
	}
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	files, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", file, err)
	}
	return pick(ctx, files)
}

func pick(ctx context.Context, files []byte) (*image, error) {
	found := &image{}
	all := map[string]packed{}
	for archive := tar.NewReader(bytes.NewReader(files)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the kernel's package: %w", err)
		}
		base := path.Base(header.Name)
		whole, isXZ := strings.CutSuffix(base, ".xz")
		switch name, isModule := strings.CutSuffix(whole, ".ko"); {
		case isModule:
			var content []byte
			content, err = io.ReadAll(archive)
			// Module names treat - and _ alike.
			all[strings.ReplaceAll(name, "-", "_")] = packed{content, isXZ}
		case strings.HasPrefix(base, "vmlinuz-"):
			found.vmlinuz, err = io.ReadAll(archive)
		case base == "modules.builtin":
			found.builtin, err = io.ReadAll(archive)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of the kernel's package: %w", header.Name, err)
		}
	}
	if found.vmlinuz == nil {
		return nil, errors.New("the kernel's package holds no kernel")
	}
	for _, name := range modules {
		if err := found.add(ctx, all, name); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// packed is a module file, compressed since Debian 13.
type packed struct {
	content []byte
	isXZ    bool
}

func (p packed) unpack(ctx context.Context) ([]byte, error) {
	if !p.isXZ {
		return p.content, nil
	}
	cmd := exec.CommandContext(ctx, "xz", "--decompress", "--stdout")
	cmd.Stdin = bytes.NewReader(p.content)
	content, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("xz: %w; run hack/prerequisites.sh --kernels", err)
	}
	return content, nil
}

func (i *image) add(ctx context.Context, all map[string]packed, name string) error {
	if slices.ContainsFunc(i.modules, func(m module) bool { return m.name == name }) {
		return nil
	}
	found, ok := all[name]
	if !ok && bytes.Contains(i.builtin, []byte("/"+name+".ko\n")) {
		return nil
	}
	if !ok {
		return fmt.Errorf("the kernel's package has no module %s", name)
	}
	content, err := found.unpack(ctx)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	depends, err := dependencies(content)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	for _, other := range depends {
		if err := i.add(ctx, all, other); err != nil {
			return err
		}
	}
	i.modules = append(i.modules, module{name: name, content: content})
	return nil
}

// dependencies parses section .modinfo: key=value strings terminated by zero bytes.
func dependencies(content []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
