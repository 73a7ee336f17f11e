// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"io"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func program() *cobra.Command {
	run := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "millrace", SilenceUsage: true, SilenceErrors: true}
	vips := &cobra.Command{Use: "vips [ADDRESS]...", RunE: run, SuggestFor: []string{"services"}}
	vips.Flags().StringP("namespace", "n", "", "")
	vips.Flags().Duration("for", time.Second, "")
	vips.Flags().Bool("watch", false, "")
	vips.Flags().Bool("exit-code", false, "")
	vips.MarkFlagsMutuallyExclusive("watch", "exit-code")
	bgp := &cobra.Command{Use: "bgp"}
	bgp.AddCommand(&cobra.Command{Use: "peers", Args: cobra.NoArgs, RunE: run})
	root.AddCommand(vips, bgp,
		&cobra.Command{Use: "why SERVICE", Args: cobra.ExactArgs(1), RunE: run},
		&cobra.Command{Use: "trace SOURCE VIP", Args: cobra.RangeArgs(1, 2), RunE: run})
	Explain(root)
	return root
}

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{}, ""},
		{[]string{"vips", "203.0.113.1", "203.0.113.2"}, ""},
		{[]string{"bgp"}, ""},
		{[]string{"vip"}, `millrace has no command "vip"; did you mean millrace vips?`},
		{[]string{"services"}, `millrace has no command "services"; did you mean millrace vips?`},
		{[]string{"frobnicate"}, `millrace has no command "frobnicate"; see millrace --help`},
		{[]string{"bgp", "peer"}, `millrace bgp has no command "peer"; did you mean millrace bgp peers?`},
		{[]string{"bgp", "peers", "node1"}, `unexpected argument "node1"; write millrace bgp peers`},
		{[]string{"why"}, "an argument is missing; write millrace why SERVICE"},
		{[]string{"why", "a", "b"}, `unexpected argument "b"; write millrace why SERVICE`},
		{[]string{"trace", "a", "b", "c"}, `unexpected argument "c"; write millrace trace SOURCE VIP`},
		{[]string{"vips", "--namspace", "a"}, "millrace vips has no flag --namspace; did you mean --namespace?"},
		{[]string{"vips", "--all"}, "millrace vips has no flag --all; see millrace vips --help"},
		{[]string{"vips", "-x"}, "millrace vips has no flag -x; see millrace vips --help"},
		{[]string{"vips", "--namespace"}, "--namespace requires a value"},
		{[]string{"vips", "--for", "ten"}, "--for=ten: write a duration such as 30s or 5m"},
		{[]string{"vips", "--watch=maybe"}, "--watch=maybe: must be true or false"},
		{[]string{"vips", "--watch", "--exit-code"}, "--watch and --exit-code exclude each other"},
	} {
		root := program()
		root.SetArgs(test.args)
		root.SetOut(io.Discard)
		got := ""
		if err := root.Execute(); err != nil {
			got = Rephrase(err).Error()
		}
		if got != test.want {
			t.Errorf("%q: %q, want %q", test.args, got, test.want)
		}
	}
}

func TestAddresses(t *testing.T) {
	if _, err := Address("foo"); err == nil || err.Error() != `"foo" is not an IP address; write 203.0.113.1 or 2001:db8:cafe::1` {
		t.Errorf("address: %v", err)
	}
	if _, err := Socket("203.0.113.1"); err == nil || err.Error() != `"203.0.113.1" is not an address with a port; write 203.0.113.1:80 or [2001:db8:cafe::1]:80` {
		t.Errorf("socket: %v", err)
	}
}
