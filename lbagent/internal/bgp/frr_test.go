// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
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

// reply is a speaker's answer to a Want: a line of JSON each.
type reply struct {
	Error    string
	Sessions []Session
}

// runSpeaker sets every Want that it reads.
func runSpeaker(restarting bool, in io.Reader, out io.Writer) error {
	s := New(Config{Restarting: restarting, Logger: logr.Discard()})
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var want *Want
		if err := decoder.Decode(&want); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		var r reply
		if want != nil {
			if err := s.Set(*want); err != nil {
				r.Error = err.Error()
			}
		}
		r.Sessions = s.Sessions()
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
	if err := p.in.Encode(want); err != nil {
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

// lab is a router and a node.
type lab struct {
	t            *testing.T
	router, node string
	state        string
	daemons      []*exec.Cmd
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
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: it makes network namespaces and runs FRR in them")
	}
	id := fmt.Sprintf("%d-%d", os.Getpid(), labs.Add(1))
	l := &lab{t: t, router: "mrbgp-r-" + id, node: "mrbgp-n-" + id}
	t.Cleanup(l.down)
	for _, namespace := range []string{l.router, l.node} {
		l.run("ip", "netns", "add", namespace)
		l.run("ip", "-n", namespace, "link", "set", "lo", "up")
	}
	l.run("ip", "link", "add", "eth0", "netns", l.node, "type", "veth", "peer", "name", "eth0", "netns", l.router)
	l.address(l.router, routerIPv4, routerIPv6)
	l.address(l.node, nodeIPv4, nodeIPv6)
	l.start(neighbors)
	return l
}

func (l *lab) address(namespace string, v4, v6 netip.Addr) {
	l.t.Helper()
	l.run("ip", "-n", namespace, "address", "add", v4.String()+"/24", "dev", "eth0")
	l.run("ip", "-n", namespace, "address", "add", v6.String()+"/64", "dev", "eth0", "nodad")
	l.run("ip", "-n", namespace, "link", "set", "eth0", "up")
}

func (l *lab) run(command ...string) string {
	l.t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// start writes FRR's configuration and starts its daemons.
func (l *lab) start(neighbors string) {
	l.t.Helper()
	owner, err := user.Lookup("frr")
	if err != nil {
		l.t.Fatalf("this test needs FRR (Debian package frr): %v", err)
	}
	uid, _ := strconv.Atoi(owner.Uid)
	gid, _ := strconv.Atoi(owner.Gid)
	if l.state, err = os.MkdirTemp("", "millrace-frr-"); err != nil {
		l.t.Fatal(err)
	}
	configuration := `log file ` + filepath.Join(l.state, "bgpd.log") + `
router bgp 64500
 bgp router-id 198.51.100.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp graceful-restart stalepath-time 60
` + neighbors
	if err := os.WriteFile(filepath.Join(l.state, "bgpd.conf"), []byte(configuration), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.state, "zebra.conf"), nil, 0o644); err != nil {
		l.t.Fatal(err)
	}
	for _, name := range []string{"", "bgpd.conf", "zebra.conf"} {
		if err := os.Chown(filepath.Join(l.state, name), uid, gid); err != nil {
			l.t.Fatal(err)
		}
	}
	l.daemon("zebra")
	l.startBGP()
}

func (l *lab) startBGP() {
	l.t.Helper()
	l.daemon("bgpd")
	l.await(10*time.Second, "bgpd answers", func() bool {
		_, err := l.vtysh("show bgp summary json")
		return err == nil
	})
}

func (l *lab) daemon(name string) *exec.Cmd {
	l.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", l.router, "/usr/lib/frr/"+name,
		"-u", "frr", "-g", "frr", "-f", filepath.Join(l.state, name+".conf"),
		"-i", filepath.Join(l.state, name+".pid"), "-z", filepath.Join(l.state, "zserv.api"),
		"--vty_socket", l.state, "-P", "0")
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.daemons = append(l.daemons, cmd)
	socket := filepath.Join(l.state, name+".vty")
	l.await(10*time.Second, name+" is up", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return cmd
}

// restartBGP kills the router's bgpd and starts it again.
func (l *lab) restartBGP() {
	l.t.Helper()
	bgpd := l.daemons[len(l.daemons)-1]
	l.daemons = l.daemons[:len(l.daemons)-1]
	_ = bgpd.Process.Kill()
	_ = bgpd.Wait()
	_ = os.Remove(filepath.Join(l.state, "bgpd.vty"))
	l.startBGP()
}

func (l *lab) down() {
	for _, cmd := range l.daemons {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}
	for _, namespace := range []string{l.router, l.node} {
		_ = exec.Command("ip", "netns", "delete", namespace).Run()
	}
	_ = os.RemoveAll(l.state)
}

func (l *lab) vtysh(command string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "vtysh", "--vty_socket", l.state, "-c", command).Output()
}

// show runs a command of the router that answers in JSON.
func (l *lab) show(command string, into any) {
	l.t.Helper()
	out, err := l.vtysh(command)
	if err != nil {
		l.t.Fatalf("vtysh -c %q: %v", command, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		l.t.Fatalf("vtysh -c %q: %v: %s", command, err, out)
	}
}

func (l *lab) await(limit time.Duration, what string, condition func() bool) {
	l.t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(l.state, "bgpd.log"))
			l.t.Fatalf("not within %s: %s\nrouter's log:\n%s", limit, what, tail(log, 30))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func tail(text []byte, lines int) []byte {
	all := bytes.Split(text, []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

// kernelRoutes are the routes that the router's kernel forwards by, learnt
// from BGP, by prefix.
func (l *lab) kernelRoutes() map[string]string {
	l.t.Helper()
	routes := map[string]string{}
	for _, family := range []string{"-4", "-6"} {
		out := l.run("ip", "-n", l.router, family, "route", "show", "proto", "bgp")
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			if via := slices.Index(fields, "via"); via > 0 && via+1 < len(fields) {
				routes[fields[0]] = fields[via+1]
			}
		}
	}
	return routes
}
