// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/api/inspect"
)

// scripted prints its text in pieces of so many bytes.
type scripted struct {
	text  string
	piece int
	err   error
}

func (s scripted) Run(_ context.Context, _ string, _ []string, out io.Writer) error {
	for rest := s.text; rest != ""; {
		n := min(s.piece, len(rest))
		if _, err := io.WriteString(out, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return s.err
}

func TestLinesInPieces(t *testing.T) {
	const text = `{"missed":1}` + "\n" + `{"missed":20,"later":true}` + "\n" + `{"missed":300}` + "\n"
	for _, piece := range []int{1, 7, 1000} {
		var got []uint64
		var last Answer
		for answer := range Follow(t.Context(), scripted{text: text, piece: piece}, []string{"node1"}, nil) {
			if last = answer; !answer.Ended {
				got = append(got, answer.Line.Missed)
			}
		}
		if len(got) != 3 || got[0] != 1 || got[1] != 20 || got[2] != 300 {
			t.Errorf("pieces of %d: %v", piece, got)
		}
		if !last.Ended || !errors.Is(last.Err, ErrEnded) {
			t.Errorf("pieces of %d: the last answer is %+v", piece, last)
		}
	}
}

func TestAsk(t *testing.T) {
	failure := errors.New("no pod")
	for name, test := range map[string]struct {
		runner scripted
		want   inspect.Line
		err    string
	}{
		"answer":  {scripted{text: `{"missed":4}` + "\n", piece: 5}, inspect.Line{Missed: 4}, ""},
		"failure": {scripted{err: failure}, inspect.Line{}, "no pod"},
		"nothing": {scripted{}, inspect.Line{}, "tells nothing"},
		"rubbish": {scripted{text: "panic: oh\n", piece: 5}, inspect.Line{}, `"panic: oh"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Ask(t.Context(), test.runner, "node1", nil)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// An end that was asked for is none to be told.
func TestEndWhenDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for answer := range Follow(ctx, scripted{err: context.Canceled}, []string{"node1", "node2"}, nil) {
		if !answer.Ended || answer.Err != nil {
			t.Errorf("%+v", answer)
		}
	}
}
