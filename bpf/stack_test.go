// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/millrace-lb/millrace/bpf"
)

// maxStack is below MAX_BPF_STACK, the 512 bytes of a call chain, as a reserve for other compilers and the
// next change.
const maxStack = 400

type function struct {
	stack int
	calls []string
}

func functions(instructions asm.Instructions) map[string]*function {
	all := map[string]*function{}
	var f *function
	use := func(offset int) { f.stack = max(f.stack, -offset) }
	// Registers that hold the frame pointer, possibly with an offset.
	var frame [11]bool
	for _, ins := range instructions {
		if name := ins.Symbol(); name != "" && all[name] == nil {
			f = &function{}
			all[name] = f
			frame = [11]bool{asm.RFP: true}
		}
		switch op := ins.OpCode; {
		case ins.IsFunctionReference() || ins.IsFunctionCall():
			f.calls = append(f.calls, ins.Reference())
		case op.Class().IsLoad() && ins.Src == asm.RFP, op.Class().IsStore() && ins.Dst == asm.RFP:
			use(int(ins.Offset))
		case op.Class() == asm.ALU64Class && op.ALUOp() == asm.Mov:
			frame[ins.Dst] = op.Source() == asm.RegSource && frame[ins.Src]
		case op.Class() == asm.ALU64Class && op.ALUOp() == asm.Add && op.Source() == asm.ImmSource && frame[ins.Dst]:
			use(int(ins.Constant))
			frame[ins.Dst] = false
		}
	}
	return all
}

// deepest returns the call chain with the largest stack, and its size. Linux 6.1 rounds each function up to
// 32 bytes (check_max_stack_depth of verifier.c); later ones round less.
func deepest(all map[string]*function, name string) (chain []string, stack int) {
	for _, callee := range all[name].calls {
		if all[callee] == nil {
			continue
		}
		if c, s := deepest(all, callee); s > stack {
			chain, stack = c, s
		}
	}
	return append([]string{name}, chain...), stack + max(all[name].stack+31, 32)/32*32
}

// The programs must also load on an older kernel.
func TestStack(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	for name, program := range spec.Programs {
		all := functions(program.Instructions)
		chain, stack := deepest(all, name)
		t.Logf("%s: %d bytes of stack in %v", name, stack, chain)
		if stack > maxStack {
			t.Errorf("%s: %d bytes of stack in %v, limit %d; consider sequential calls instead of nested ones", name, stack, chain, maxStack)
		}
		if len(chain) > 8 {
			t.Errorf("%s: call depth %d: %v, limit 8", name, len(chain), chain)
		}
	}
}

// maxMaps is the number of maps of a program, below MAX_USED_MAPS (64 in include/linux/bpf_verifier.h).
const maxMaps = 63

// The verifier rejects programs that use more maps, including those of global variables.
func TestMapsOfPrograms(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	for name, program := range spec.Programs {
		used := map[string]bool{}
		for _, ins := range program.Instructions {
			if ins.IsLoadFromMap() {
				used[ins.Reference()] = true
			}
		}
		t.Logf("%s: %d maps", name, len(used))
		if len(used) > maxMaps {
			t.Errorf("%s: %d maps, limit %d; merge maps with equal keys", name, len(used), maxMaps)
		}
	}
}

// maxVerified is the limit of verified instructions per program, of the kernel's million. Half a million
// takes about a second at the agent's start. Linux 6.1 verifies 15 % more than 6.18.
const maxVerified = 260_000

// TestPrograms is run by CI on an emulated older kernel: the verifier accepts all programs, XDP delivers a
// SYN of each family to a pod, and tcx translates the reply.
func TestPrograms(t *testing.T) {
	w := newWorld(t)
	for name, program := range map[string]*ebpf.Program{"ingress": w.Ingress, "egress": w.Egress} {
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		verified, ok := info.VerifiedInstructions()
		if !ok {
			t.Fatalf("%s: the kernel does not report how many instructions it verified", name)
		}
		t.Logf("%s: %d instructions verified", name, verified)
		if verified > maxVerified {
			t.Errorf("%s: %d instructions verified, limit %d; a global function is verified only once", name, verified, maxVerified)
		}
	}
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"transmit_drops": bpf.LoadTransmitDrops, "l2_responder": bpf.LoadL2Responder} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		programs, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatalf("%s: %+v", name, err)
		}
		programs.Close()
	}
	for _, f := range families {
		w.pointTo(t, f, 0)
		syn, pod := f.tcp(portCluster, "S"), f.pods[0]
		checkFrame(t, w.ingress(t, syn.frame()).frame, delivered(syn, pod))
		reply := answer(syn, pod, "SA")
		fromVIP := reply.with(func(p *packet) { p.from = f.to(portCluster) })
		checkFrame(t, w.egress(t, reply.frame()), fromVIP.frame())
	}
}
