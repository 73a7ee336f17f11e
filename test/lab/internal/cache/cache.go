// SPDX-License-Identifier: Apache-2.0

// Package cache builds the lab's programs once per content of their sources, in a directory shared by labs
// and checkouts.
package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is a directory of built programs.
type Cache struct {
	dir      string
	root     string
	progress func(format string, args ...any)
	version  string
}

// Open returns the user's cache for the project in root. The directory may not exist yet.
func Open(ctx context.Context, root string, progress func(format string, args ...any)) (*Cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache directory: %w: set XDG_CACHE_HOME", err)
	}
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir = root
	version, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("run go version: %w: install Go and put it on PATH", err)
	}
	return &Cache{
		dir:      filepath.Join(base, "millrace-lab"),
		root:     root,
		progress: progress,
		version:  strings.TrimSpace(string(version)),
	}, nil
}

// Dir returns the cache's directory.
func (c *Cache) Dir() string { return c.dir }

// Ensure returns the directory of a target's programs and builds them if necessary.
func (c *Cache) Ensure(ctx context.Context, target Target) (string, error) {
	key, err := target.Key(os.DirFS(c.root), c.version)
	if err != nil {
		return "", err
	}
	directory := filepath.Join(c.dir, target.Name+"-"+key)
	return directory, c.fill(ctx, directory, func(draft string) error { return c.build(ctx, target, draft) })
}

// fill atomically creates a directory with f unless it exists. Concurrent calls wait, because two builds
// take twice as long.
func (c *Cache) fill(ctx context.Context, directory string, f func(draft string) error) error {
	if _, err := os.Stat(directory); err == nil {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	name := filepath.Base(directory)
	unlock, err := c.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(directory); err == nil {
		return nil
	}
	// The lock is held, so existing drafts are of killed builds.
	pattern := ".draft-" + name + "-*"
	stale, _ := filepath.Glob(filepath.Join(c.dir, pattern))
	for _, draft := range stale {
		if err := os.RemoveAll(draft); err != nil {
			return fmt.Errorf("remove the files of a killed build: %w", err)
		}
	}
	draft, err := os.MkdirTemp(c.dir, pattern)
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
	if err := os.Rename(draft, directory); err != nil {
		return fmt.Errorf("fill cache: %w", err)
	}
	return nil
}

const lockInterval = 500 * time.Millisecond

// lock waits until no other process fills the directory. Locks end with their process.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	path := filepath.Join(c.dir, ".lock-"+name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create cache: %w", err)
	}
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for isReported := false; ; isReported = true {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !isReported {
			c.progress("%s: another lab builds it, waiting", name)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("wait for the build that holds %s: %w", path, ctx.Err())
		case <-ticker.C:
		}
	}
}

func (c *Cache) build(ctx context.Context, target Target, output string) error {
	start := time.Now()
	c.progress("%s: building from %s; the first time takes minutes", target.Name, target.Dir)
	directory, err := c.prepare(ctx, target, output)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Join(output, workDir))
	command := exec.CommandContext(ctx, "go", target.arguments(output)...)
	command.Dir = directory
	command.Env = append(os.Environ(), target.environment()...)
	// The build ends with a killed lab.
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	report := &reporter{}
	command.Stderr = report
	stop := callEvery(reportInterval, func() { c.progress("%s: %s", target.Name, report) })
	defer stop()

	// Pdeathsig is sent when the thread that started the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := command.Run(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", target.Name, command.Dir, err, report.otherOutput())
	}
	c.progress("%s: built in %s", target.Name, time.Since(start).Round(time.Second))
	return nil
}

const workDir = ".work"

func (c *Cache) prepare(ctx context.Context, target Target, output string) (string, error) {
	directory := filepath.Join(c.root, target.Dir)
	if target.Prepare == "" {
		return directory, nil
	}
	work := filepath.Join(output, workDir)
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", fmt.Errorf("prepare %s: %w", target.Name, err)
	}
	command := exec.CommandContext(ctx, "/bin/sh", target.Prepare, work, output)
	command.Dir = directory
	command.Env = append(os.Environ(), target.environment()...)
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("run %s of %s in %s: %w\n%s", target.Prepare, target.Name, directory, err, out)
	}
	if _, err := os.Stat(filepath.Join(work, "go.mod")); err == nil {
		return work, nil
	}
	return directory, nil
}

const reportInterval = 10 * time.Second

func callEvery(interval time.Duration, f func()) (stop func()) {
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

// reporter parses `go build -v`: a line per downloaded module and compiled package, and errors.
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

// String returns the progress.
func (r *reporter) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.compiled == 0 {
		return fmt.Sprintf("%d modules downloaded", r.modules)
	}
	return fmt.Sprintf("%d packages compiled, now after %s", r.compiled, r.last)
}

// otherOutput returns all other output: the compiler's errors.
func (r *reporter) otherOutput() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimSpace(r.other.String() + r.buffer.String())
}
