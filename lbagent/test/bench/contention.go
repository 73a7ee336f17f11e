// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Tables with eviction, for the contention of CPUs that each add entries to a full table, as in a SYN flood.
// Flow tables are of the first kind; in the second kind, each CPU has its own lists and thus a part of the
// table.
var evictingTables = []struct {
	name  string
	flags uint32
}{
	{"one list for all CPUs", 0},
	{"a list for each CPU", unix.BPF_F_NO_COMMON_LRU},
}

const contended = "contention of CPUs"

const (
	contendedEntries = 1 << 16
	contendedUpdates = 1 << 18
)

func contention(rounds int, out io.Writer) error {
	p := &printer{out: out}
	p.line("")
	p.line("new entry in a full table, ns of a CPU's time, median of %d rounds", rounds)
	p.line("%-40s %12s %12s %8s", "", "one CPU", fmt.Sprintf("all %d", runtime.NumCPU()), "ratio")
	for _, table := range evictingTables {
		var alone, together []float64
		for range rounds {
			one, err := updateAtOnce(table.flags, 1)
			if err != nil {
				return fmt.Errorf("%s: %w", table.name, err)
			}
			all, err := updateAtOnce(table.flags, runtime.NumCPU())
			if err != nil {
				return fmt.Errorf("%s: %w", table.name, err)
			}
			alone, together = append(alone, one), append(together, all)
		}
		slices.Sort(alone)
		slices.Sort(together)
		one, all := alone[rounds/2], together[rounds/2]
		p.line("%-40s %12.0f %12.0f %8.2f", table.name, one, all, all/one)
	}
	return errors.Join(p.err, cookies(rounds, p))
}

func cookies(rounds int, p *printer) error {
	program, err := ebpf.NewProgram(cookieMaker())
	if err != nil {
		return fmt.Errorf("load the program that makes SYN cookies: %w", err)
	}
	defer program.Close()
	var costs []float64
	for range rounds {
		took, err := cpuTime(program)
		if err != nil {
			return fmt.Errorf("generate SYN cookies: %w", err)
		}
		costs = append(costs, float64(took.Nanoseconds())/contendedUpdates)
	}
	slices.Sort(costs)
	p.line("%-40s %12.0f", "a SYN cookie in its place", costs[rounds/2])
	return p.err
}

func cookieMaker() *ebpf.ProgramSpec {
	var instructions asm.Instructions
	// IP and TCP headers of 20 bytes each, from frame pointer - 40.
	for offset, word := range map[int16]int32{-40: 0x45, -32: 6 << 8, -28: 0x0a6433c6, -24: 0x0a7100cb, -20: 0x50000004, -8: 0x0250} {
		instructions = append(instructions, asm.StoreImm(asm.RFP, offset, int64(word), asm.Word))
	}
	for _, offset := range []int16{-36, -16, -12, -4} {
		instructions = append(instructions, asm.StoreImm(asm.RFP, offset, 0, asm.Word))
	}
	instructions = append(instructions,
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -40),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -20),
		asm.Mov.Imm(asm.R3, 20),
		asm.FnTcpRawGenSyncookieIpv4.Call(),
		asm.Mov.Imm(asm.R0, 2),
		asm.Return(),
	)
	return &ebpf.ProgramSpec{Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: instructions}
}

// updateAtOnce returns the nanoseconds per entry.
func updateAtOnce(flags uint32, cpus int) (float64, error) {
	table, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.LRUHash, KeySize: 16, ValueSize: 16, MaxEntries: contendedEntries, Flags: flags,
	})
	if err != nil {
		return 0, fmt.Errorf("build a table: %w", err)
	}
	defer table.Close()
	program, err := ebpf.NewProgram(updater(table))
	if err != nil {
		return 0, fmt.Errorf("load the program: %w", err)
	}
	defer program.Close()
	start := make(chan struct{})
	took, failed := make([]time.Duration, cpus), make([]error, cpus)
	var ready, done sync.WaitGroup
	for cpu := range cpus {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			// The thread ends with the goroutine, so that its affinity affects no other goroutine.
			runtime.LockOSThread()
			failed[cpu] = bindTo(cpu)
			ready.Done()
			<-start
			if failed[cpu] == nil {
				took[cpu], failed[cpu] = cpuTime(program)
			}
		}()
	}
	ready.Wait()
	close(start)
	done.Wait()
	total := time.Duration(0)
	for _, one := range took {
		total += one
	}
	return float64(total.Nanoseconds()) / float64(cpus*contendedUpdates), errors.Join(failed...)
}

func bindTo(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("run on CPU %d: %w", cpu, err)
	}
	return nil
}

// cpuTime returns the thread time of a run, after a run that fills the table.
func cpuTime(program *ebpf.Program) (time.Duration, error) {
	frame := make([]byte, 64)
	run := func() (time.Duration, error) {
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
			return 0, fmt.Errorf("read the thread's clock: %w", err)
		}
		if _, err := program.Run(&ebpf.RunOptions{Data: frame, Repeat: contendedUpdates}); err != nil {
			return 0, fmt.Errorf("run the program: %w", err)
		}
		err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
		return time.Duration(after.Nano() - before.Nano()), err
	}
	if _, err := run(); err != nil {
		return 0, err
	}
	return run()
}

func updater(table *ebpf.Map) *ebpf.ProgramSpec {
	instructions := asm.Instructions{
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, -16, asm.R1, asm.DWord), asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
	}
	for offset := int16(-32); offset < -16; offset += 4 {
		instructions = append(instructions, asm.FnGetPrandomU32.Call(), asm.StoreMem(asm.RFP, offset, asm.R0, asm.Word))
	}
	instructions = append(instructions,
		asm.LoadMapPtr(asm.R1, table.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -32),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 2),
		asm.Return(),
	)
	return &ebpf.ProgramSpec{Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: instructions}
}
