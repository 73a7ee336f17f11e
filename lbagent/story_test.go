// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

// A story is an archive in testdata: a script and its files. Each line is a command; with a leading "!" it
// must fail.
//
//	agent [--max-node-tables=N ...]  start an agent on the maps, in place of the running one
//	apply FILE...               create or replace the objects of these files
//	delete KIND [NAMESPACE/]NAME
//	wait DURATION               advance the time
//	pass                        one pass of the agent; prints the time of the next, or the error
//	settle                      passes until no further one is due
//	fail WRITE [N|all]          fail the N-th such write from now (1), or all
//	heal                        let all writes succeed
//	maps, routes, status        print the maps, the routes or the LBNode
//	writes                      print the writes since the last call
//	cmp stdout FILE             compare the last output
//
// A WRITE is an operation of package forwarding such as PutFrontend, or Set (of routes), Attach (to uplinks),
// Dump. FILE is in the archive or, if shared, in testdata. With -update the compared files are written
// instead.
type story struct {
	name     string
	file     string
	archive  *txtar.Archive
	commands []command
}

type command struct {
	line    int
	refused bool
	words   []string
}

var update = flag.Bool("update", false, "write what the stories print into testdata")

func readStories(t *testing.T) []*story {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %d stories, error %v", len(files), err)
	}
	var stories []*story
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := &story{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), file: file, archive: archive}
		for i, line := range strings.Split(string(archive.Comment), "\n") {
			line, _, _ = strings.Cut(line, "#")
			line, refused := strings.CutPrefix(strings.TrimSpace(line), "! ")
			if words := strings.Fields(line); len(words) > 0 {
				s.commands = append(s.commands, command{i + 1, refused, words})
			}
		}
		stories = append(stories, s)
	}
	return stories
}

func (s *story) read(name string) ([]byte, error) {
	for _, file := range s.archive.Files {
		if file.Name == name {
			return file.Data, nil
		}
	}
	return os.ReadFile(filepath.Join("testdata", name))
}

// compare compares a file of the archive with the output, or updates it.
func (s *story) compare(name, got string) error {
	at := slices.IndexFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == name })
	if *update {
		if at < 0 {
			s.archive.Files = append(s.archive.Files, txtar.File{Name: name})
			at = len(s.archive.Files) - 1
		}
		s.archive.Files[at].Data = []byte(got)
		return nil
	}
	if at < 0 {
		return fmt.Errorf("no file %s in the archive", name)
	}
	if diff := cmp.Diff(string(s.archive.Files[at].Data), got); diff != "" {
		return fmt.Errorf("%s differs: %s", name, diff)
	}
	return nil
}

func TestStories(t *testing.T) {
	for _, s := range readStories(t) {
		t.Run(s.name, func(t *testing.T) {
			p := newPlayer(s, newNode(t))
			p.node.fails = p.asTold
			p.play(t, p.commands())
			if *update && !t.Failed() {
				if err := os.WriteFile(s.file, txtar.Format(s.archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// storyLimits are the default capacities of the maps.
var storyLimits = forwarding.Limits{Frontends: 16, NodeTables: 8, EndpointTables: 8, Endpoints: 32, VIPs: 8, SourceRanges: 16}

type player struct {
	story   *story
	node    *node
	objects objects
	loop    *loop
	witness *witness
	now     time.Time
	printed string
	// told are the writes that the story fails, by the number of preceding successes; -1 for all.
	told map[string]int
	// loose ignores whether passes fail as the story expects.
	loose bool
}

func newPlayer(s *story, n *node) *player {
	p := &player{story: s, node: n, objects: objects{}, now: start, told: map[string]int{}, witness: newWitness(testDelay)}
	n.watch = p.witness.see
	return p
}

func (p *player) asTold(what string) bool {
	left, found := p.told[what]
	switch {
	case !found:
		return false
	case left > 0:
		p.told[what]--
		return false
	case left == 0:
		delete(p.told, what)
	}
	return true
}

func (p *player) play(t *testing.T, commands map[string]func(args []string) error) {
	t.Helper()
	for _, c := range p.story.commands {
		run := commands[c.words[0]]
		if run == nil {
			t.Fatalf("%s:%d: unknown command %s", p.story.file, c.line, c.words[0])
		}
		err := run(c.words[1:])
		if p.witness.err != nil {
			t.Fatalf("%s:%d: %s: %v", p.story.file, c.line, strings.Join(c.words, " "), p.witness.err)
		}
		asExpected := err != nil == c.refused
		if p.loose {
			asExpected = err == nil || errors.Is(err, errInjected)
		}
		if !asExpected {
			t.Fatalf("%s:%d: %s: error %v, want an error: %t", p.story.file, c.line, strings.Join(c.words, " "), err, c.refused)
		}
	}
}

func (p *player) commands() map[string]func([]string) error {
	show := func(what func() string) func([]string) error {
		return func([]string) error { p.printed = what(); return nil }
	}
	return map[string]func([]string) error{
		"agent":  p.runAgent,
		"apply":  p.runApply,
		"delete": func(args []string) error { return p.objects.delete(args) },
		"wait":   p.runWait,
		"pass":   func([]string) error { _, err := p.pass(); return err },
		"settle": func([]string) error { return p.settle() },
		"fail":   p.runFail,
		"heal":   func([]string) error { clear(p.told); return nil },
		"maps":   p.runMaps,
		"routes": show(func() string { return showRoutes(p.node.want.Routes) }),
		"status": show(func() string { return showStatus(p.node.observation) }),
		"writes": show(p.showWrites),
		"cmp":    p.runCmp,
	}
}

func (p *player) runAgent(args []string) error {
	limits := storyLimits
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	for name, limit := range map[string]*int{
		"max-frontends": &limits.Frontends, "max-node-tables": &limits.NodeTables, "max-endpoint-tables": &limits.EndpointTables,
		"max-endpoints": &limits.Endpoints, "max-vips": &limits.VIPs, "max-source-ranges": &limits.SourceRanges,
	} {
		flags.IntVar(limit, name, *limit, "")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	return p.startAgent(limits)
}

func (p *player) startAgent(limits forwarding.Limits) error {
	if err := p.node.open(limits); err != nil {
		return err
	}
	p.loop = newLoop(p.node, nil)
	p.witness.restart(p.loop.maps.Have(), limits)
	p.loop.maps.Limits, p.loop.assembler.Objects = limits, p.objects.snapshot
	return nil
}

func (p *player) runApply(args []string) error {
	for _, name := range args {
		data, err := p.story.read(name)
		if err != nil {
			return err
		}
		if err := p.objects.apply(data); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (p *player) runWait(args []string) error {
	duration, err := time.ParseDuration(strings.Join(args, " "))
	p.now = p.now.Add(duration)
	return err
}

func (p *player) runFail(args []string) error {
	times := "1"
	if len(args) == 2 {
		times = args[1]
	}
	if times == "all" {
		p.told[args[0]] = -1
		return nil
	}
	n, err := strconv.Atoi(times)
	if err != nil || n < 1 {
		return fmt.Errorf("fail %s: not a number of writes: %s", args[0], times)
	}
	p.told[args[0]] = n - 1
	return nil
}

func (p *player) runMaps([]string) error {
	state, err := p.node.read()
	if err != nil {
		return err
	}
	p.printed = showMaps(state)
	return nil
}

func (p *player) runCmp(args []string) error {
	if len(args) != 2 || args[0] != "stdout" {
		return errors.New("usage: cmp stdout FILE")
	}
	return p.story.compare(args[1], p.printed)
}

func (p *player) pass() (again time.Duration, err error) {
	p.witness.begin(p.objects.snapshot(), p.now)
	again, err = p.loop.pass(p.now)
	switch {
	case err != nil:
		p.printed = err.Error() + "\n"
	case again > 0:
		p.printed = fmt.Sprintf("again in %s\n", again)
	default:
		p.printed = "done\n"
	}
	return again, err
}

// settle runs passes as the agent does. It gives up after repeated failures.
func (p *player) settle() error {
	const most = 20
	failed := 0
	for range most {
		again, err := p.pass()
		if err != nil {
			if failed++; failed == 3 {
				return err
			}
			again = notify.Soonest(again, minRetry)
		}
		if again == 0 {
			return nil
		}
		p.now = p.now.Add(again)
	}
	return fmt.Errorf("not settled after %d passes", most)
}
