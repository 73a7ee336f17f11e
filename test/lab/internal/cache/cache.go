// SPDX-License-Identifier: Apache-2.0

// Package cache builds the programs that the lab runs, each set once per content of
// its sources, into a folder that outlives labs and checkouts.
package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is a folder of built programs.
type Cache struct {
	dir  string
	root string
	// progress gets sentences for people.
	progress func(format string, args ...any)
	version  string
}

// Open returns the user's cache, which may not exist yet, for the project in root.
func Open(ctx context.Context, root string, progress func(format string, args ...any)) (*Cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache folder: %w: set XDG_CACHE_HOME", err)
	}
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir = root
	version, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("ask Go for its version: %w: install Go and put it on PATH", err)
	}
	return &Cache{
		dir:      filepath.Join(base, "millrace-lab"),
		root:     root,
		progress: progress,
		version:  strings.TrimSpace(string(version)),
	}, nil
}

// Dir returns the cache's folder.
func (c *Cache) Dir() string { return c.dir }

// Ensure returns the folder of a target's programs, and builds them if it is missing.
func (c *Cache) Ensure(ctx context.Context, target Target) (string, error) {
	key, err := target.Key(os.DirFS(c.root), c.version)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(c.dir, target.Name+"-"+key)
	return folder, c.fill(folder, func(draft string) error { return c.build(ctx, target, draft) })
}

// fill makes a folder by f unless it is there. It appears complete or not at all, also
// when two labs fill the cache at once.
func (c *Cache) fill(folder string, f func(draft string) error) error {
	if _, err := os.Stat(folder); err == nil {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	draft, err := os.MkdirTemp(c.dir, ".draft-*")
	if err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	defer os.RemoveAll(draft)
	if err := f(draft); err != nil {
		return err
	}
	if err := os.Chmod(draft, 0o755); err != nil {
		return fmt.Errorf("fill cache: %w", err)
	}
	if err := os.Rename(draft, folder); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("fill cache: %w", err)
	}
	return nil
}

func (c *Cache) build(ctx context.Context, target Target, output string) error {
	start := time.Now()
	c.progress("%s: building from %s; the first time takes minutes", target.Name, target.Dir)
	command := exec.CommandContext(ctx, "go", target.arguments(output)...)
	command.Dir = filepath.Join(c.root, target.Dir)
	command.Env = append(os.Environ(), target.environment()...)
	// A killed lab takes the build with it.
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	report := &reporter{}
	command.Stderr = report
	stop := tellEvery(reportInterval, func() { c.progress("%s: %s", target.Name, report) })
	defer stop()

	// The signal above is sent when the thread that started the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := command.Run(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", target.Name, command.Dir, err, report.rest())
	}
	c.progress("%s: built in %s", target.Name, time.Since(start).Round(time.Second))
	return nil
}

// reportInterval is how often a long build tells how far it is.
const reportInterval = 10 * time.Second

// tellEvery calls f at an interval until the returned function is called.
func tellEvery(interval time.Duration, f func()) (stop func()) {
	ticker := time.NewTicker(interval)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(done)
	}
}

// reporter reads what `go build -v` writes: a line per downloaded module, a line
// per compiled package, and errors.
type reporter struct {
	mu                sync.Mutex
	buffer, other     bytes.Buffer
	modules, compiled int
	last              string
}

func (r *reporter) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffer.Write(p)
	for {
		line, err := r.buffer.ReadString('\n')
		if err != nil {
			r.buffer.WriteString(line)
			return len(p), nil
		}
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "go: downloading "):
			r.modules++
		case strings.ContainsAny(line, " \t"):
			fmt.Fprintln(&r.other, line)
		default:
			r.compiled++
			r.last = line
		}
	}
}

// String says how far the build is.
func (r *reporter) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.compiled == 0 {
		return fmt.Sprintf("%d modules downloaded", r.modules)
	}
	return fmt.Sprintf("%d packages compiled, now after %s", r.compiled, r.last)
}

// rest returns what was neither a module nor a package: the compiler's errors.
func (r *reporter) rest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimSpace(r.other.String() + r.buffer.String())
}
