// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/millrace-lb/millrace/bpf"
)

// maxStack is less than MAX_BPF_STACK, the 512 bytes that all functions of a call chain have together:
// other compilers need more, and so does the next change.
const maxStack = 400

// function is what is known of a BPF function.
type function struct {
	// stack is the bytes that it uses.
	stack int
	calls []string
}

// functions reads the functions of a program.
func functions(instructions asm.Instructions) map[string]*function {
	all := map[string]*function{}
	var f *function
	use := func(offset int) { f.stack = max(f.stack, -offset) }
	// Registers that hold the frame pointer, to which an offset may be added.
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

// deepest is the call chain from the function that needs most stack, and how much. Linux
// 6.1 rounds what each function needs up to 32 bytes (check_max_stack_depth of verifier.c);
// later ones round less.
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

// A kernel older than the running one must load the programs, too.
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
			t.Errorf("%s: %d bytes of stack in %v, may be %d; what must not be seen at once may return first", name, stack, chain, maxStack)
		}
		// MAX_CALL_FRAMES.
		if len(chain) > 8 {
			t.Errorf("%s: %d functions deep: %v, may be 8", name, len(chain), chain)
		}
	}
}

// maxVerified is how many instructions the verifier may follow in a program. The kernel's limit is a
// million; an agent that starts waits for this, about a second for half of it.
const maxVerified = 240_000

// TestPrograms is the test that CI runs on an older kernel under emulation: the verifier accepts all
// programs, the XDP program delivers a SYN of each family to a pod, and the tcx program makes the VIP
// the source of the reply.
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
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"losses": bpf.LoadLosses, "questions": bpf.LoadQuestions} {
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
