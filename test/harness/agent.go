// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
)

const changedImage = "millrace.test/lbagent:changed"

// LoadChangedAgent builds an agent with equivalent but different BPF programs, loads its image into all
// nodes and returns its name.
func (c *Cluster) LoadChangedAgent(ctx context.Context) (image string, err error) {
	directory, err := os.MkdirTemp("", "millrace-changed-*")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	object := filepath.Join(c.root, "bpf", "datapath_bpfel.o")
	changed, err := changePrograms(object)
	if err != nil {
		return "", fmt.Errorf("change the programs of %s: %w", object, err)
	}
	replacement := filepath.Join(directory, "datapath.o")
	if err := os.WriteFile(replacement, changed, 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{object: replacement}})
	if err != nil {
		return "", err
	}
	overlayFile := filepath.Join(directory, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return "", err
	}
	program := filepath.Join(directory, "lbagent")
	if err := RunIn(ctx, c.root, "go", "build", "-buildvcs=false", "-trimpath",
		"-ldflags", "-s -w -X main.version="+path.Base(changedImage), "-overlay", overlayFile, "-o", program, "./cmd/lbagent"); err != nil {
		return "", err
	}
	return changedImage, c.LoadFiles(ctx, changedImage, "/lbagent", program+":/lbagent")
}

// LoadFiles builds an image of static files, each FILE:/PATH, and loads it into all nodes.
func (c *Cluster) LoadFiles(ctx context.Context, image, entrypoint string, files ...string) (err error) {
	directory, err := os.MkdirTemp("", "millrace-image-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	archive := filepath.Join(directory, "image.tar")
	command := []string{
		"go", "run", "./hack/mkimage", "--arch", runtime.GOARCH, "--name", image, "--entrypoint", entrypoint, "--output", archive,
	}
	if err := RunIn(ctx, c.root, append(command, files...)...); err != nil {
		return err
	}
	_, err = c.Run(ctx, "image", "load", archive)
	return err
}

// RunIn runs a command in a directory, without cgo.
func RunIn(ctx context.Context, directory string, args ...string) error {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir = directory
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", args[0], args[1], err, bytes.TrimSpace(out))
	}
	return nil
}

// BPF opcodes (RFC 9669): move a constant, sign-extended to 64 bits or zero-extended from 32.
const (
	moveLong        = 0xb7
	moveShort       = 0xb4
	instructionSize = 8
)

// changePrograms returns a BPF object in which each move of a non-negative constant has the other of two
// equivalent encodings.
func changePrograms(object string) ([]byte, error) {
	content, err := os.ReadFile(object)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	changes := 0
	for _, section := range file.Sections {
		if section.Flags&elf.SHF_EXECINSTR == 0 {
			continue
		}
		code := content[section.Offset : section.Offset+section.Size]
		for ; len(code) >= instructionSize; code = code[instructionSize:] {
			if int32(binary.LittleEndian.Uint32(code[4:])) < 0 {
				continue
			}
			switch code[0] {
			case moveLong:
				code[0] = moveShort
			case moveShort:
				code[0] = moveLong
			default:
				continue
			}
			changes++
		}
	}
	if changes == 0 {
		return nil, errors.New("no instruction to change")
	}
	return content, nil
}
