// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package relay

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/api/relay"
)

const (
	// agentsOf is the environment variable that makes a process run the agents; its value is the relay's URL.
	// snapshotOf is the size of a snapshot. The agents do not decode it, because decoding would cost more
	// than sending.
	agentsOf, snapshotOf = "MILLRACE_RELAY", "MILLRACE_SNAPSHOT"
	// manyAgents is half the agents of 5,000 nodes, because there are two relays.
	manyAgents, manySlices = 2500, 20000
)

func TestMain(m *testing.M) {
	if address := os.Getenv(agentsOf); address != "" {
		runAgents(address)
	}
	os.Exit(m.Run())
}

func runAgents(address string) {
	size, _ := strconv.ParseInt(os.Getenv(snapshotOf), 10, 64)
	errs := make(chan error)
	for range manyAgents {
		go func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			response, err := client.Get(address + relay.PathEndpointSlices + "?" + relay.Request{Snapshot: true}.Values().Encode())
			if err != nil {
				errs <- err
				return
			}
			_, err = io.CopyN(io.Discard, response.Body, size)
			errs <- err
			_, _ = io.Copy(io.Discard, response.Body)
		}()
	}
	for range manyAgents {
		if err := <-errs; err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	fmt.Println("connected")
	select {}
}

func TestManyAgents(t *testing.T) {
	// cmd/liveapi sets the same value.
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	l := &Log{}
	fill(t, l)
	debug.FreeOSMemory()
	t.Logf("%d slices of ten endpoints: %d MiB", manySlices, resident(t))
	served := httptest.NewTLSServer(NewHandler(t.Context(), l, logr.Discard()))
	defer served.Close()
	agents := exec.CommandContext(t.Context(), os.Args[0])
	_, snapshot, err := l.Open(relay.Request{Snapshot: true})
	must(t, err)
	size := len(bytes.Join(snapshot, nil))
	agents.Env = append(os.Environ(), agentsOf+"="+served.URL, fmt.Sprintf("%s=%d", snapshotOf, size))
	output, err := agents.StdoutPipe()
	must(t, err)
	must(t, agents.Start())
	defer func() {
		_ = agents.Process.Kill()
		_ = agents.Wait()
		served.CloseClientConnections()
	}()
	logs, err := bufio.NewReader(output).ReadString('\n')
	if logs != "connected\n" {
		t.Fatalf("the logs of the agents are %q, %v", logs, err)
	}
	debug.FreeOSMemory()
	t.Logf("with %d agents, which have read all %d MiB: %d MiB", manyAgents, size>>20, resident(t))
	before, start := used(t), time.Now()
	ticks := time.NewTicker(10 * time.Millisecond)
	defer ticks.Stop()
	for i := range 1000 {
		<-ticks.C
		must(t, l.Put(filled(i, 2+i)))
	}
	took := time.Since(start)
	t.Logf("1,000 changes in %s: %.2f processors, %d MiB", took.Round(10*time.Millisecond), (used(t)-before).Seconds()/took.Seconds(), resident(t))
}

func fill(t *testing.T, l *Log) {
	t.Helper()
	var all []*discoveryv1.EndpointSlice
	for i := range manySlices {
		all = append(all, filled(i, 1))
	}
	must(t, l.Replace(all, "1"))
}

func filled(number, version int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("web-%d", number)
	made := slice(name+"-x7b2k", uint64(version))
	made.UID, made.Labels = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", map[string]string{discoveryv1.LabelServiceName: name}
	for i := range 10 {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("198.18.%d.%d", number%250, 10*i)}, NodeName: new(fmt.Sprintf("node-%04d", number%1000)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(i != version%10), Serving: new(true)},
		})
	}
	return made
}

func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	kilobytes, err := strconv.Atoi(strings.Fields(after)[0])
	must(t, err)
	return kilobytes >> 10
}

func used(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
