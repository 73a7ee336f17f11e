// SPDX-License-Identifier: Apache-2.0

// Command size measures the cost of one change in a cluster of full size: 5,000 routes, 10,000 hosts and
// 5,000 certificates. The compiler, the distribution and the proxies are the production code; each proxy
// is a process that receives the change over TLS. The measurement includes neither the API server and the
// informers, nor the 25 ms for which the controller collects further changes.
//
//	size                  prints the table
//	size -strict          fails if a limit is exceeded
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// The documented limits.
const (
	maxDelay = 500 * time.Millisecond
	maxProxy = 300 << 20
)

type options struct {
	programs string
	strict   bool
	proxies  int
	rounds   int
}

func main() {
	var o options
	flag.StringVar(&o.programs, "programs", "bin", "directory of lbproxy")
	flag.BoolVar(&o.strict, "strict", false, "fail if a limit is exceeded")
	flag.IntVar(&o.proxies, "proxies", 2, "number of proxies")
	flag.IntVar(&o.rounds, "rounds", 9, "number of rounds; the median is reported")
	flag.Parse()
	if flag.NArg() > 0 || o.proxies < 1 || o.rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

var kinds = []struct {
	name   string
	create func() (*model.Objects, error)
	change func(objects *model.Objects, round int)
}{
	{"Ingresses of a class", routetest.Ingresses, func(objects *model.Objects, round int) {
		i := (round * 617) % len(objects.Ingresses)
		changed := objects.Ingresses[i].DeepCopy()
		changed.Spec.Rules[0].HTTP.Paths[0].Path = fmt.Sprintf("/changed-%d", round)
		changed.Generation, changed.ResourceVersion = changed.Generation+1, fmt.Sprint(round+2)
		objects.Ingresses = slices.Clone(objects.Ingresses)
		objects.Ingresses[i] = changed
	}},
	{"HTTPRoutes of a Gateway", routetest.Gateways, func(objects *model.Objects, round int) {
		i := (round * 617) % len(objects.HTTPRoutes)
		changed := objects.HTTPRoutes[i].DeepCopy()
		weight := int32(round + 2)
		changed.Spec.Rules[0].BackendRefs[0].Weight = &weight
		changed.Generation, changed.ResourceVersion = changed.Generation+1, fmt.Sprint(round+2)
		objects.HTTPRoutes = slices.Clone(objects.HTTPRoutes)
		objects.HTTPRoutes[i] = changed
	}},
}

func run(ctx context.Context, o options, out io.Writer) error {
	var err error
	if o.programs, err = filepath.Abs(o.programs); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "of one change\treaches all proxies\tworst\tcontroller CPU\tproxy CPU\t"+
		"resources sent\tproxy memory\tcontroller heap\t\n")
	var missed []error
	for _, kind := range kinds {
		figures, err := measure(ctx, o, kind.create, kind.change)
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		fmt.Fprintf(table, "%s\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\t%d\t%d MiB\t%d MiB\t\n", kind.name,
			milliseconds(middle(figures.delays)), milliseconds(slices.Max(figures.delays)),
			milliseconds(middle(figures.controller)), milliseconds(middle(figures.proxy)),
			figures.sent, figures.memory>>20, figures.heap>>20)
		if delay := middle(figures.delays); delay > maxDelay {
			missed = append(missed, fmt.Errorf("%s: a change takes %v, more than %v", kind.name, delay, maxDelay))
		}
		if figures.memory > maxProxy {
			missed = append(missed, fmt.Errorf("%s: a proxy has %d MiB, more than %d", kind.name, figures.memory>>20, maxProxy>>20))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if o.strict {
		return errors.Join(missed...)
	}
	for _, err := range missed {
		fmt.Fprintln(out, "exceeded:", err)
	}
	return nil
}

type figures struct {
	delays            []time.Duration
	controller, proxy []time.Duration
	// sent is the maximum number of resources that one change has sent.
	sent         int
	memory, heap uint64
}

func middle(values []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func measure(
	ctx context.Context, o options, create func() (*model.Objects, error), change func(*model.Objects, int),
) (f *figures, err error) {
	objects, err := create()
	if err != nil {
		return nil, err
	}
	current := *objects
	w, err := newWorld(o)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return nil, err
	}
	if _, err := w.compile(&current); err != nil {
		return nil, err
	}
	if err := w.startProxies(o); err != nil {
		return nil, err
	}
	if err := w.served(ctx, ""); err != nil {
		return nil, err
	}
	f = &figures{}
	for round := range o.rounds {
		change(&current, round)
		if err := w.change(ctx, &current, f); err != nil {
			return nil, err
		}
	}
	if f.memory, err = w.memory(); err != nil {
		return nil, err
	}
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	f.heap = stats.HeapAlloc
	runtime.KeepAlive(objects)
	return f, nil
}

func (w *world) change(ctx context.Context, objects *model.Objects, f *figures) error {
	before := w.version()
	mine, theirs, err := w.times()
	if err != nil {
		return err
	}
	begun := time.Now()
	sent, err := w.compile(objects)
	if err != nil {
		return err
	}
	if err := w.served(ctx, before); err != nil {
		return err
	}
	f.delays = append(f.delays, time.Since(begun))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	mineAfter, theirsAfter, err := w.times()
	if err != nil {
		return err
	}
	f.controller = append(f.controller, mineAfter-mine)
	f.proxy = append(f.proxy, (theirsAfter-theirs)/time.Duration(len(w.proxies)))
	f.sent = max(f.sent, sent)
	return nil
}
