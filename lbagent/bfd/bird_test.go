// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	protocol "github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

const birdConfiguration = `
router id 198.51.100.1;
protocol device {}
protocol bfd bfd1 {
  interface "eth0" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; };
  multihop { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; };
  neighbor 198.51.100.2 dev "eth0";
  neighbor 2001:db8::2 dev "eth0";
  neighbor 198.51.100.2 local 198.51.100.1 multihop yes;
}
`

type birdLab struct {
	*lab
	socket string
}

func newBIRDLab(t *testing.T) *birdLab {
	t.Helper()
	l := &birdLab{lab: newLab(t)}
	l.socket = filepath.Join(l.dir, "bird.ctl")
	configuration := filepath.Join(l.dir, "bird.conf")
	if err := os.WriteFile(configuration, []byte(birdConfiguration), 0o600); err != nil {
		t.Fatal(err)
	}
	// A real router does not share its CPUs with tests.
	cmd := exec.Command("nice", "-n", "-20", "ip", "netns", "exec", l.RouterSpace, "bird", "-f", "-c", configuration, "-s", l.socket,
		"-P", filepath.Join(l.dir, "bird.pid"))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("start BIRD (Debian package bird2): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	await(t, upWithin, "BIRD answers", func() (bool, any) {
		out, err := l.birdc("show status")
		return err == nil, out
	})
	return l
}

func (l *birdLab) birdc(command string) (string, error) {
	out, err := exec.Command("birdc", "-s", l.socket, command).CombinedOutput()
	return string(out), err
}

// states returns the session states shown by BIRD, in order.
func (l *birdLab) states() ([]string, string) {
	l.t.Helper()
	out, err := l.birdc("show bfd sessions")
	if err != nil {
		l.t.Fatalf("birdc: %v: %s", err, out)
	}
	var states []string
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 3 &&
			(fields[0] == nodeIPv4.String() || fields[0] == nodeIPv6.String()) {
			states = append(states, fields[2])
		}
	}
	return states, out
}

func (l *birdLab) awaitAll(limit time.Duration, state string) time.Duration {
	l.t.Helper()
	return await(l.t, limit, "BIRD's sessions are "+state, func() (bool, any) {
		states, out := l.states()
		for _, s := range states {
			if s != state {
				return false, out
			}
		}
		return len(states) == 3, out
	})
}

// As with FRR: up, across a replaced process, lost in time, and shut down.
func TestBIRD(t *testing.T) {
	l := newBIRDLab(t)
	p := l.start(l.NodeSpace, "node")
	wanted := peers()[:3]
	p.Set(control.Want{Peers: wanted})
	for _, peer := range wanted {
		p.awaitState(peer.Name, protocol.Up)
	}
	l.awaitAll(upWithin, "Up")
	await(t, upWithin, "BIRD transmits every 100 ms", func() (bool, any) {
		session := p.session(routerName4)
		return session.DetectionTime == 300*ms && session.TransmitInterval == 100*ms, session
	})

	p.end(syscall.SIGTERM)
	// Longer than the previously negotiated detection time.
	time.Sleep(time.Second)
	l.awaitAll(upWithin, "Up")
	p = l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: wanted})
	for _, peer := range wanted {
		if session := p.awaitState(peer.Name, protocol.Up); session.Losses != 0 {
			t.Errorf("%s: %d losses", peer.Name, session.Losses)
		}
	}
	l.awaitAll(upWithin, "Up")
	await(t, upWithin, "the intervals are back", func() (bool, any) {
		session := p.session(multihop4)
		return session.DetectionTime == 300*ms && session.TransmitInterval == 100*ms, session
	})
	// Packets at the new interval must have reached BIRD.
	await(t, upWithin, "BIRD expects 300 ms", func() (bool, any) {
		_, out := l.states()
		return strings.Count(out, "0.300") == len(wanted), out
	})
	p.signal(syscall.SIGSTOP)
	took := l.awaitAll(time.Second, "Down")
	t.Logf("process stopped: BIRD detected it after %s", took)
	p.signal(syscall.SIGCONT)
	for _, peer := range wanted {
		p.awaitState(peer.Name, protocol.Up)
	}
	p.Set(control.Want{})
	l.awaitAll(upWithin, "Down")
}
