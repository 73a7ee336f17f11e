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

	"github.com/millrace-lb/millrace/lbagent/test/frr"
	"github.com/millrace-lb/millrace/lbagent/test/link"
)

// Tests that need root run FRR and a Server process, each in a network namespace, with a link between.

// speakerVariable makes the test binary run a Server.
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

// request sets Want and takes down a session, if given.
type request struct {
	Want *Want
	Down string
}

// reply is a line of JSON.
type reply struct {
	Error            string
	Sessions         []Session
	DynamicNeighbors []netip.Addr
	Refused          Refused
}

func runSpeaker(restarting bool, in io.Reader, out io.Writer) error {
	s := New(Config{Restarting: restarting})
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
			s.Down(asked.Down, "BFD session lost")
		}
		r.Sessions, r.DynamicNeighbors, r.Refused = s.Sessions(), s.DynamicNeighbors(), s.Refused()
		if err := encoder.Encode(r); err != nil {
			return err
		}
	}
}

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

// kill simulates an agent's crash.
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

// lab is a router and a node. Router is nil if the router is not FRR.
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

// Neighbors in FRR's configuration.
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

// newLink returns a lab without a router.
func newLink(t *testing.T) *lab {
	t.Helper()
	return &lab{Link: link.New(t, "mrbgp"), t: t}
}
