// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

func copies(t *testing.T, d *Dataplane) (first, second []byte, whole bpf.DatapathCompleteCopy) {
	t.Helper()
	filter, err := d.establishedFilter()
	if err != nil {
		t.Fatal(err)
	}
	first, firstErr := filter.read(bpf.DatapathCompleteCopyFIRST_COPY)
	second, secondErr := filter.read(bpf.DatapathCompleteCopySECOND_COPY)
	if err := errors.Join(firstErr, secondErr); err != nil {
		t.Fatal(err)
	}
	return first, second, filter.whole
}

func wholeCopy(t *testing.T, d *Dataplane) []byte {
	t.Helper()
	first, second, whole := copies(t, d)
	if whole == bpf.DatapathCompleteCopySECOND_COPY {
		return second
	}
	return first
}

// The agent's copy equals the programs' copy since the start of the node.
func TestSweepMatchesPrograms(t *testing.T) {
	n := startNetwork(t, false)
	n.openSessionsOnAll(t, 40)
	for _, node := range n.nodes {
		if _, _, whole := copies(t, node.dataplane); whole != bpf.DatapathCompleteCopyNO_COPY {
			t.Errorf("copy %d is complete before the first sweep", whole)
		}
		if err := node.dataplane.SweepConnections(); err != nil {
			t.Fatal(err)
		}
		swept, noted, whole := copies(t, node.dataplane)
		if whole != bpf.DatapathCompleteCopyFIRST_COPY || !bytes.Equal(swept, noted) {
			t.Errorf("copy %d is complete, copies equal: %t", whole, bytes.Equal(swept, noted))
		}
		if node.dataplane.recordedBits == 0 {
			t.Error("no connection was recorded")
		}
	}
}

// A sweep rebuilds the filter after many connections, without evicted ones.
func TestSweepRemovesEvicted(t *testing.T) {
	n := startNetwork(t, false)
	n.openSessionsOnAll(t, 40)
	d := n.nodes[0].dataplane
	sweep := func() bpf.DatapathCompleteCopy {
		t.Helper()
		if err := d.SweepConnections(); err != nil {
			t.Fatal(err)
		}
		_, _, whole := copies(t, d)
		return whole
	}
	sweep()
	forgetFlows(t, d)
	if whole := sweep(); whole != bpf.DatapathCompleteCopyFIRST_COPY || d.recordedBits == 0 {
		t.Errorf("copy %d is complete with %d bits, want the first, unchanged", whole, d.recordedBits)
	}
	d.recordedBits = -int(d.config.establishedWords()) * 64
	if whole := sweep(); whole != bpf.DatapathCompleteCopySECOND_COPY || d.recordedBits != 0 {
		t.Errorf("copy %d is complete with %d bits, want the second with 0 bits", whole, d.recordedBits)
	}
}

// After a failure, clients are not collected.
func TestNothingIsCollectedAfterFailure(t *testing.T) {
	found := foundClients{err: errors.New("no program")}
	for port := range uint16(2) {
		found.add4(1, port)
	}
	if found.count != 0 || len(found.flows) != 0 {
		t.Errorf("%d clients in %d bytes were collected, want none", found.count, len(found.flows))
	}
}

// The complete copy contains every connection established during sweeps.
func TestSweepsMissNothing(t *testing.T) {
	n := startNetwork(t, false)
	done := make(chan struct{})
	swept := make(chan error)
	go func() {
		defer close(swept)
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, node := range n.nodes {
				if err := node.dataplane.makeFilter(); err != nil {
					swept <- err
					return
				}
			}
		}
	}()
	for range 10 {
		n.openSessions(t, 40)
	}
	close(done)
	for err := range swept {
		t.Fatal(err)
	}
	for _, node := range n.nodes {
		previous := wholeCopy(t, node.dataplane)
		if err := node.dataplane.makeFilter(); err != nil {
			t.Fatal(err)
		}
		fresh := wholeCopy(t, node.dataplane)
		for i := range fresh {
			if fresh[i]&^previous[i] != 0 {
				t.Fatalf("byte %d of the complete copy was %08b, the connections require %08b", i, previous[i], fresh[i])
			}
		}
	}
}
