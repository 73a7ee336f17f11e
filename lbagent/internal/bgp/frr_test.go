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
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/test/frr"
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
	Error    string
	Sessions []Session
	Callers  []netip.Addr
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
		r.Sessions, r.Callers = s.Sessions(), s.Callers()
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
	cmd := exec.Command("ip", "netns", "exec", l.node, os.Args[0])
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
	*frr.Router
	t            *testing.T
	router, node string
}

var (
	routerIPv4 = netip.MustParseAddr("198.51.100.1")
	nodeIPv4   = netip.MustParseAddr("198.51.100.2")
	routerIPv6 = netip.MustParseAddr("2001:db8::1")
	nodeIPv6   = netip.MustParseAddr("2001:db8::2")
	labs       atomic.Int32
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
	dynamicNeighbor = ` neighbor nodes peer-group
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
	l.Router = frr.Start(t, l.router, neighbors)
	return l
}

// newLink makes the namespaces of a router and a node, without a router.
func newLink(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: it makes network namespaces and runs routers in them")
	}
	id := fmt.Sprintf("%d-%d", os.Getpid(), labs.Add(1))
	l := &lab{t: t, router: "mrbgp-r-" + id, node: "mrbgp-n-" + id}
	t.Cleanup(func() {
		for _, namespace := range []string{l.router, l.node} {
			_ = exec.Command("ip", "netns", "delete", namespace).Run()
		}
	})
	for _, namespace := range []string{l.router, l.node} {
		l.run("ip", "netns", "add", namespace)
		l.run("ip", "-n", namespace, "link", "set", "lo", "up")
	}
	l.run("ip", "link", "add", "eth0", "netns", l.node, "type", "veth", "peer", "name", "eth0", "netns", l.router)
	l.address(l.router, routerIPv4, routerIPv6)
	l.address(l.node, nodeIPv4, nodeIPv6)
	return l
}

func (l *lab) address(namespace string, v4, v6 netip.Addr) {
	l.t.Helper()
	l.run("ip", "-n", namespace, "address", "add", v4.String()+"/24", "dev", "eth0")
	l.run("ip", "-n", namespace, "address", "add", v6.String()+"/64", "dev", "eth0", "nodad")
	l.run("ip", "-n", namespace, "link", "set", "eth0", "up")
}

func (l *lab) run(command ...string) {
	l.t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}
