// SPDX-License-Identifier: Apache-2.0

// Package segments stores lines in files of bounded size and removes the oldest file when all are full. A
// partial line of a killed process does not damage others.
package segments

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

const (
	// SegmentSize is the size of a file in bytes.
	SegmentSize = 640 << 10
	// Segments is the maximum number of files.
	Segments = 16
	// Limit is the total size of all files in bytes.
	Limit   = SegmentSize * Segments
	pattern = "%08d.jsonl"
)

// MinRetained returns the number of bytes of the newest lines that are always retained, for lines of at most
// longest bytes: a segment ends before a line that does not fit.
func MinRetained(longest int) int64 { return (Segments - 1) * int64(SegmentSize-longest) }

// Log is a directory of lines. It is safe for concurrent use.
type Log struct {
	directory string

	mu      sync.Mutex
	numbers []uint64
	// last is the current file, or nil, and size its size.
	last *os.File
	size int64
	// torn is true if the file may end within a line.
	torn bool
	// olderSize is the size of all files but the last.
	olderSize int64
}

// Open returns the Log in a directory and creates the directory.
func Open(directory string) (*Log, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the history: %w", err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("list the history: %w", err)
	}
	l := &Log{directory: directory}
	for _, entry := range entries {
		var number uint64
		if _, err := fmt.Sscanf(entry.Name(), pattern, &number); err == nil && entry.Name() == fmt.Sprintf(pattern, number) {
			l.numbers = append(l.numbers, number)
		}
	}
	slices.Sort(l.numbers)
	return l, l.adopt()
}

func (l *Log) adopt() error {
	if err := l.drop(Segments); err != nil || len(l.numbers) == 0 {
		return err
	}
	for _, number := range l.numbers[:len(l.numbers)-1] {
		info, err := os.Stat(l.path(number))
		if err != nil {
			return fmt.Errorf("stat the history: %w", err)
		}
		l.olderSize += info.Size()
	}
	file, err := os.OpenFile(l.path(l.numbers[len(l.numbers)-1]), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("stat the history: %w", err), file.Close())
	}
	l.last, l.size = file, info.Size()
	end := make([]byte, 1)
	if l.size > 0 {
		if _, err := file.ReadAt(end, l.size-1); err != nil {
			return errors.Join(fmt.Errorf("read the end of the history: %w", err), file.Close())
		}
		l.torn = end[0] != '\n'
	}
	return nil
}

func (l *Log) path(number uint64) string {
	return filepath.Join(l.directory, fmt.Sprintf(pattern, number))
}

func (l *Log) drop(most int) error {
	for len(l.numbers) > most {
		path := l.path(l.numbers[0])
		if info, err := os.Stat(path); err == nil {
			l.olderSize = max(0, l.olderSize-info.Size())
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the oldest part of the history: %w", err)
		}
		l.numbers = l.numbers[1:]
	}
	return nil
}

// Append writes lines without line ends. A line must be shorter than a segment. Lines are lost if a write
// fails.
func (l *Log) Append(lines [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(lines) > 0 {
		// One more byte ends a torn line.
		if l.last == nil || l.size+int64(len(lines[0]))+2 > SegmentSize {
			if err := l.next(); err != nil {
				return err
			}
		}
		var out bytes.Buffer
		if l.torn {
			out.WriteByte('\n')
		}
		fit := 0
		for fit < len(lines) && (fit == 0 || l.size+int64(out.Len()+len(lines[fit]))+1 <= SegmentSize) {
			out.Write(lines[fit])
			out.WriteByte('\n')
			fit++
		}
		n, err := l.last.Write(out.Bytes())
		l.size += int64(n)
		l.torn = err != nil && (l.torn || n > 0)
		if err != nil {
			return fmt.Errorf("write the history: %w", err)
		}
		lines = lines[fit:]
	}
	return nil
}

func (l *Log) next() error {
	var number uint64
	if len(l.numbers) > 0 {
		number = l.numbers[len(l.numbers)-1] + 1
	}
	// The oldest file is removed first, so that the limit is never exceeded.
	if err := l.drop(Segments - 1); err != nil {
		return err
	}
	file, err := os.OpenFile(l.path(number), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("begin a part of the history: %w", err)
	}
	if l.last != nil {
		_ = l.last.Close()
	}
	l.olderSize += l.size
	l.numbers = append(l.numbers, number)
	l.last, l.size, l.torn = file, 0, false
	return nil
}

// Read calls each with every line, the oldest first. The line is valid only during the call.
func (l *Log) Read(each func(line []byte)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, number := range l.numbers {
		// Another process may have removed the file.
		if err := readLines(l.path(number), each); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the history: %w", err)
		}
	}
	return nil
}

func readLines(path string, each func(line []byte)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	// No line of this package is longer than a file.
	lines := bufio.NewReaderSize(io.LimitReader(file, SegmentSize), SegmentSize+1)
	for {
		line, err := lines.ReadSlice('\n')
		if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > 0 {
			each(line)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// Size returns the size of all files in bytes.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.olderSize + l.size
}

// Close closes the current file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil
	}
	return l.last.Close()
}

// Remove removes a Log with its directory.
func Remove(directory string) error {
	if err := os.RemoveAll(directory); err != nil {
		return fmt.Errorf("remove the history: %w", err)
	}
	return nil
}
