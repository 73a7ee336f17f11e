// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

type session struct {
	t       *testing.T
	stdin   *io.PipeWriter
	reports *json.Decoder
	ended   chan error
}

func startHold(t *testing.T, args ...string) *session {
	t.Helper()
	commands, stdin := io.Pipe()
	reports, stdout := io.Pipe()
	s := &session{t: t, stdin: stdin, reports: json.NewDecoder(reports), ended: make(chan error, 1)}
	go func() {
		err := holdUntil(t.Context(), args, commands, stdout)
		stdout.CloseWithError(err)
		s.ended <- err
	}()
	return s
}

func (s *session) report() holdreport.Report {
	s.t.Helper()
	var report holdreport.Report
	if err := s.reports.Decode(&report); err != nil {
		s.t.Fatal(err)
	}
	return report
}

func (s *session) check() holdreport.Report {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, "check\n"); err != nil {
		s.t.Fatal(err)
	}
	return s.report()
}

func (s *session) end() holdreport.Report {
	s.t.Helper()
	s.stdin.Close()
	report := s.report()
	if err := <-s.ended; err != nil {
		s.t.Fatal(err)
	}
	return report
}

func TestHoldReportsSilence(t *testing.T) {
	var silent atomic.Bool
	first := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case first <- r.RemoteAddr:
		default:
		}
		if silent.Load() {
			chosen := <-first
			first <- chosen
			if chosen == r.RemoteAddr {
				<-r.Context().Done()
				return
			}
		}
		writeAnswer(w, r, identity{Pod: "p"})
	}))
	t.Cleanup(server.Close)
	s := startHold(t, "--to", strings.TrimPrefix(server.URL, "http://"), "--flows", "2", "--interval", "20ms", "--timeout", "300ms")
	if report := s.report(); report.Live != 2 {
		t.Fatalf("initial report: %+v", report)
	}
	silent.Store(true)
	report := s.check()
	if report.Live != 1 || len(report.Broken) != 1 || !strings.Contains(report.Broken[0].Error, "timeout") {
		t.Errorf("got %+v, want one connection that timed out", report)
	}
	s.end()
}

func TestHoldRefusedConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	s := startHold(t, "--to", listener.Addr().String(), "--flows", "3", "--interval", "10ms")
	if report := s.report(); report.Live != 0 || len(report.Broken) != 3 || len(report.FirstErrors) != 3 {
		t.Errorf("got %+v, want three broken flows", report)
	}
	s.end()
}

// TestHoldDatagrams moves flows to another pod and then silences it.
func TestHoldDatagrams(t *testing.T) {
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	var pod atomic.Value
	var received atomic.Int64
	pod.Store("a")
	served := make(chan struct{})
	go func() {
		defer close(served)
		buffer := make([]byte, maxDatagram)
		for {
			n, client, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			received.Add(1)
			if name := pod.Load().(string); name != "" {
				_, _ = socket.WriteTo([]byte(name+" node client "+string(buffer[:n])), client)
			}
		}
	}()
	const flows = 300
	s := startHold(t, "--udp", "--to", socket.LocalAddr().String(), "--from", "127.0.0.1,127.0.0.2", "--flows", strconv.Itoa(flows),
		"--interval", "1h", "--timeout", "1s")
	if report := s.report(); report.PerPod["a"] != flows || report.Silent != 0 || len(report.Moved) != 0 {
		t.Fatalf("initial report: %+v", report)
	}
	pod.Store("b")
	before := received.Load()
	report := s.check()
	// Each flow continues after the first answer.
	if got := received.Load() - before; got < 2*flows {
		t.Errorf("%d datagrams for %d flows with a new pod, want two per flow", got, flows)
	}
	if want := []holdreport.Movement{{From: "a", To: "b", Flows: flows}}; !slices.Equal(report.Moved, want) || report.PerPod["b"] != flows {
		t.Errorf("got %+v, want movements %v", report, want)
	}
	if report := s.check(); len(report.Moved) != 0 {
		t.Errorf("movements were reported twice: %v", report.Moved)
	}
	pod.Store("")
	if report := s.check(); report.Silent != flows || report.Lost == 0 || report.PerPod["b"] != flows {
		t.Errorf("without replies: %+v", report)
	}
	s.end()
	socket.Close()
	<-served
}
