// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Query sends a request to the agent at the socket, and copies the lines of the response to out. It returns
// nil when the response ends or ctx is done, and an error if the agent reports one.
func Query(ctx context.Context, path string, request Request, out io.Writer) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("query the agent at %s: %w; is it running in this container?", path, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	// An agent with too many clients writes an error and closes the connection, perhaps before the
	// request is written. Its response can be read nevertheless.
	unasked := json.NewEncoder(conn).Encode(request)
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && unasked != nil:
			return fmt.Errorf("query the agent at %s: %w", path, unasked)
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case err != nil:
			return fmt.Errorf("read the agent's response: %w", err)
		}
		var answer consoleapi.Line
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("decode the agent's response %q: %w", line, err)
		}
		if answer.Error != "" {
			return fmt.Errorf("the agent: %s", answer.Error)
		}
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("write the agent's response: %w", err)
		}
	}
}
