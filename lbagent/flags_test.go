// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

// Each capacity has a flag, which the message about a full map names.
func TestFlagsOfCapacities(t *testing.T) {
	config := DefaultConfig()
	flags := pflag.NewFlagSet("lbagent", pflag.ContinueOnError)
	config.AddFlags(flags)
	for capacity := forwarding.Frontends; capacity <= forwarding.SourceRanges; capacity++ {
		full := plan.Problem{Problem: model.Problem{Message: capacity.String()}, Full: capacity}
		message := nameFlags([]plan.Problem{full})[0].Message
		failed := nameFlag(&dataplane.ApplyError{Err: &dataplane.FullError{Capacity: capacity, Err: dataplane.ErrFull}})
		if _, said, _ := strings.Cut(message, ";"); !errors.Is(failed, dataplane.ErrFull) || !strings.HasSuffix(failed.Error(), said) {
			t.Errorf("error %q, want %q at its end", failed, said)
		}
		_, flag, found := strings.Cut(strings.TrimSuffix(message, " of the agents"), "raise --")
		if !found || flags.Lookup(flag) == nil {
			t.Fatalf("capacity %s: unexpected message %q", capacity, message)
		}
		if err := flags.Set(flag, "12345"); err != nil {
			t.Fatal(err)
		}
		limits := config.limits()
		if limits.Of(capacity) != 12345 {
			t.Errorf("--%s=12345 sets the limit to %d %s", flag, limits.Of(capacity), capacity)
		}
		if err := flags.Set(flag, "1"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVethTransmitFlag(t *testing.T) {
	config := DefaultConfig()
	flags := pflag.NewFlagSet("lbagent", pflag.ContinueOnError)
	config.AddFlags(flags)
	if config.Dataplane().VethTransmit {
		t.Error("VethTransmit is true by default")
	}
	if err := flags.Parse([]string{"--veth-transmit"}); err != nil {
		t.Fatal(err)
	}
	if !config.Dataplane().VethTransmit {
		t.Error("--veth-transmit is not passed to the data plane")
	}
}

func TestOtherProblemsSuggestNoFlag(t *testing.T) {
	if got := nameFlags([]plan.Problem{{Problem: model.Problem{Message: "same hash"}}}); got[0].Message != "same hash" {
		t.Errorf("message = %q, want it unchanged", got[0].Message)
	}
}
