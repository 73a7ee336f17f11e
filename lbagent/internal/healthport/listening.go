// SPDX-License-Identifier: Apache-2.0

package healthport

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// listen is the state of a listening socket in /proc/net/tcp (TCP_LISTEN).
const listen = "0A"

func listening(port uint16) (bool, error) {
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		file, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			// The kernel has no IPv6.
			continue
		}
		if err != nil {
			return false, fmt.Errorf("find the listener of port %d: %w", port, err)
		}
		found, err := isListening(file, port)
		_ = file.Close()
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// isListening reports whether a table of sockets has one that listens on a port. The kernel lists listening
// sockets first, so other sockets are not read.
func isListening(table io.Reader, port uint16) (bool, error) {
	lines := bufio.NewScanner(table)
	// The first line is the header.
	for lines.Scan(); lines.Scan(); {
		columns := strings.Fields(lines.Text())
		if len(columns) < 4 || columns[3] != listen {
			return false, nil
		}
		_, text, _ := strings.Cut(columns[1], ":")
		number, err := strconv.ParseUint(text, 16, 16)
		if err != nil {
			return false, fmt.Errorf("read the port of the socket %q: %w", columns[1], err)
		}
		if uint16(number) == port {
			return true, nil
		}
	}
	return false, lines.Err()
}
