// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/test/frr"
	"github.com/millrace-lb/millrace/lbagent/test/link"
)

// The tests of this package that need root run a real router (FRR's zebra and
// bgpd) and this package's Server in a process of its own, each in a network
// namespace, with one link between them.

// speakerVariable makes the test program a speaker instead of running tests.
const speakerVariable = "MILLRACE_BGP_TEST_SPEAKER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(speakerVariable); mode != "" {
		if err := runSpeaker(mode == "restarting", os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// request is what a speaker is asked: to set Want, if any, and to take the session with a peer
// down, if any.
type request struct {
	Want *Want
	Down string
}

// reply is a speaker's answer to a request: a line of JSON each.
type reply struct {
	Error            string
	Sessions         []Session
	DynamicNeighbors []netip.Addr
	Refused          Refused
}

// runSpeaker does every request that it reads.
func runSpeaker(restarting bool, in io.Reader, out io.Writer) error {
	s := New(Config{Restarting: restarting, Logger: logr.Discard()})
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var asked request
		if err := decoder.Decode(&asked); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		var r reply
		if asked.Want != nil {
			if err := s.Set(*asked.Want); err != nil {
				r.Error = err.Error()
			}
		}
		if asked.Down != "" {
			if err := s.Down(asked.Down, "BFD session lost"); err != nil {
				r.Error = err.Error()
			}
		}
		r.Sessions, r.DynamicNeighbors, r.Refused = s.Sessions(), s.DynamicNeighbors(), s.Refused()
		if err := encoder.Encode(r); err != nil {
			return err
		}
	}
}

// process is a Server in a process of its own.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    *json.Encoder
	out   *bufio.Reader
	ended bool
}

func (l *lab) speaker(mode string) *process {
	l.t.Helper()
	return l.speakerAt(l.NodeSpace, mode)
}

// speakerAt runs a speaker in a namespace.
func (l *lab) speakerAt(space, mode string) *process {
	l.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", space, os.Args[0])
	cmd.Env = append(os.Environ(), speakerVariable+"="+mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	p := &process{t: l.t, cmd: cmd, in: json.NewEncoder(in), out: bufio.NewReader(out)}
	l.t.Cleanup(p.kill)
	return p
}

// kill ends the process as an agent's crash would.
func (p *process) kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) call(want *Want) reply {
	p.t.Helper()
	return p.ask(request{Want: want})
}

func (p *process) ask(asked request) reply {
	p.t.Helper()
	if err := p.in.Encode(asked); err != nil {
		p.t.Fatal(err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(line, &r); err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *process) set(want Want) {
	p.t.Helper()
	if r := p.call(&want); r.Error != "" {
		p.t.Fatal(r.Error)
	}
}

func (p *process) session(name string) Session {
	p.t.Helper()
	for _, session := range p.call(nil).Sessions {
		if session.Peer == name {
			return session
		}
	}
	p.t.Fatalf("no session with %s", name)
	return Session{}
}

// lab is a router and a node. Router is nil where the router is not FRR.
type lab struct {
	*link.Link
	*frr.Router
	t *testing.T
}

var (
	routerIPv4 = link.RouterIPv4
	nodeIPv4   = link.NodeIPv4
	routerIPv6 = link.RouterIPv6
	nodeIPv6   = link.NodeIPv6
)

// neighbors of the router, in FRR's configuration.
const (
	staticNeighbor = ` neighbor 198.51.100.2 remote-as 64512
 neighbor 198.51.100.2 timers connect 1
 neighbor 198.51.100.2 passive
 address-family ipv4 unicast
  neighbor 198.51.100.2 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor 198.51.100.2 activate
 exit-address-family
`
	dynamicRange = ` neighbor nodes peer-group
 neighbor nodes remote-as 64512
 bgp listen range 198.51.100.0/24 peer-group nodes
 address-family ipv4 unicast
  neighbor nodes activate
 exit-address-family
 address-family ipv6 unicast
  neighbor nodes activate
 exit-address-family
`
)

func newLab(t *testing.T, neighbors string) *lab {
	t.Helper()
	l := newLink(t)
	l.Router = frr.Start(t, l.RouterSpace, neighbors)
	return l
}

// newLink is a lab without a router.
func newLink(t *testing.T) *lab {
	t.Helper()
	return &lab{Link: link.New(t, "mrbgp"), t: t}
}
