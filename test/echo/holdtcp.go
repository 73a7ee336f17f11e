// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

type tcpFlows struct {
	config holdConfig
	tally  *tally
	start  time.Time
	stop   context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	flows   []tcpFlow
	broken  []holdreport.BrokenFlow
	opening sync.WaitGroup
	times   []time.Duration
}

// tcpFlow is one connection, guarded by the mutex of tcpFlows.
type tcpFlow struct {
	pod      string
	requests int
	lastGood time.Time
	longest  time.Duration
	broken   bool
}

func newTCPFlows(config holdConfig, tally *tally) *tcpFlows {
	return &tcpFlows{config: config, tally: tally, start: time.Now(), flows: make([]tcpFlow, config.flows)}
}

func (f *tcpFlows) open(ctx context.Context) error {
	ctx, f.stop = context.WithCancel(ctx)
	f.opening.Add(f.config.flows)
	// Requests keep the spacing of the connections' starts.
	step := max(f.config.interval/time.Duration(f.config.flows), time.Second/time.Duration(f.config.burst))
	for i := range f.config.flows {
		if !sleepUntil(ctx, f.start.Add(time.Duration(i)*step)) {
			return ctx.Err()
		}
		f.ended.Go(func() { f.hold(ctx, i) })
	}
	f.opening.Wait()
	return nil
}

// timeout is the interval plus the timeout, after which every connection has answered or is broken.
func (f *tcpFlows) timeout() time.Duration {
	return f.config.interval + f.config.timeout + time.Second
}

func (f *tcpFlows) hold(ctx context.Context, i int) {
	opened := sync.OnceFunc(f.opening.Done)
	defer opened()
	from, to := f.config.ends(i)
	dialer := net.Dialer{Timeout: f.config.timeout}
	if from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	connection, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		f.recordBroken(ctx, i, holdreport.BrokenFlow{Local: from.String(), Remote: to.String()}, err)
		return
	}
	defer connection.Close()
	// Closing unblocks a read.
	defer context.AfterFunc(ctx, func() { connection.Close() })()
	answers := bufio.NewReaderSize(connection, 1024)
	next := time.Now()
	for {
		round, sent := f.tally.current(), time.Now()
		pod, err := f.exchange(connection, answers)
		if err != nil {
			f.recordBroken(ctx, i, holdreport.BrokenFlow{Local: connection.LocalAddr().String(), Remote: to.String()}, err)
			return
		}
		f.record(i, pod, sent)
		f.tally.answer(i, round)
		opened()
		next = next.Add(f.config.interval)
		if now := time.Now(); next.Before(now) {
			next = now
		}
		if !sleepUntil(ctx, next) {
			return
		}
	}
}

func (f *tcpFlows) exchange(connection net.Conn, answers *bufio.Reader) (pod string, err error) {
	if err := connection.SetDeadline(time.Now().Add(f.config.timeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: hold\r\n\r\n"); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var from answer
	if err := json.Unmarshal(body, &from); err != nil {
		return "", fmt.Errorf("decode answer %.80q: %w", body, err)
	}
	return from.Pod, nil
}

func (f *tcpFlows) record(i int, pod string, sent time.Time) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times = append(f.times, now.Sub(sent))
	flow := &f.flows[i]
	if !flow.lastGood.IsZero() {
		flow.longest = max(flow.longest, now.Sub(flow.lastGood))
	}
	flow.pod, flow.lastGood = pod, now
	flow.requests++
}

func (f *tcpFlows) recordBroken(ctx context.Context, i int, record holdreport.BrokenFlow, err error) {
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	flow := &f.flows[i]
	flow.broken = true
	record.Pod, record.Requests = flow.pod, flow.requests
	record.At, record.Error = time.Since(f.start).Seconds(), err.Error()
	f.broken = append(f.broken, record)
	f.mu.Unlock()
	f.tally.leave(i)
}

func (f *tcpFlows) report() holdreport.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	report := holdreport.Report{
		Seconds: time.Since(f.start).Seconds(), Flows: len(f.flows), PerPod: map[string]int{},
		Broken: append([]holdreport.BrokenFlow{}, f.broken...), Moved: []holdreport.Movement{}, FirstErrors: []string{},
	}
	slices.Sort(f.times)
	report.P50, report.P99 = quantile(f.times, 0.5), quantile(f.times, 0.99)
	f.times = nil
	for _, broken := range f.broken[:min(len(f.broken), maxFirstErrors)] {
		report.FirstErrors = append(report.FirstErrors, broken.Error)
	}
	for i := range f.flows {
		flow := &f.flows[i]
		report.Requests += int64(flow.requests)
		if flow.broken {
			continue
		}
		report.Live++
		report.PerPod[flow.pod]++
		report.LongestGap = max(report.LongestGap, flow.longest.Seconds())
		flow.longest = 0
	}
	return report
}

func (f *tcpFlows) close() {
	if f.stop != nil {
		f.stop()
	}
	f.ended.Wait()
}
