// SPDX-License-Identifier: Apache-2.0

// Package usage replaces the messages of cobra and pflag about command lines by ones that name the mistake
// and a correct form.
package usage

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
)

// Explain installs the messages in a command and its subcommands.
func Explain(command *cobra.Command) {
	command.SetFlagErrorFunc(flagError)
	if command.HasSubCommands() {
		command.Args = subcommand
		command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() }
		command.DisableFlagsInUseLine = true
	} else if check := command.Args; check != nil {
		command.Args = func(command *cobra.Command, args []string) error { return arguments(command, args, check) }
	}
	for _, sub := range command.Commands() {
		Explain(sub)
	}
}

// subcommand rejects arguments of a command that only has subcommands.
func subcommand(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	path := command.CommandPath()
	if similar := suggestion(command, args[0]); similar != "" {
		return fmt.Errorf("%s has no command %q; did you mean %s %s?", path, args[0], path, similar)
	}
	return fmt.Errorf("%s has no command %q; see %s --help", path, args[0], path)
}

// suggestion returns the subcommand with the alternative name, or else with a similar name, or "".
func suggestion(command *cobra.Command, name string) string {
	missing := apierror.Missing{Name: name}
	for _, sub := range command.Commands() {
		if slices.Contains(sub.SuggestFor, name) {
			return sub.Name()
		}
		if !sub.Hidden {
			missing.Names = append(missing.Names, sub.Name())
		}
	}
	return missing.Similar()
}

func arguments(command *cobra.Command, args []string, check cobra.PositionalArgs) error {
	if check(command, args) == nil {
		return nil
	}
	form := command.Parent().CommandPath() + " " + command.Use
	for n := len(args) - 1; n >= 0; n-- {
		if check(command, args[:n]) == nil {
			return fmt.Errorf("unexpected argument %q; write %s", args[n], form)
		}
	}
	return fmt.Errorf("an argument is missing; write %s", form)
}

func flagError(command *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var valueless *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		return noFlag(command, unknown)
	case errors.As(err, &valueless):
		return fmt.Errorf("--%s requires a value", valueless.GetFlag().Name)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		return fmt.Errorf("--%s=%s: %s", flag.Name, invalid.GetValue(), form(flag.Value.Type(), errors.Unwrap(invalid)))
	}
	return err
}

func noFlag(command *cobra.Command, unknown *pflag.NotExistError) error {
	path := command.CommandPath()
	if unknown.GetSpecifiedShortnames() != "" {
		return fmt.Errorf("%s has no flag -%s; see %s --help", path, unknown.GetSpecifiedName(), path)
	}
	missing := apierror.Missing{Kind: "flag", Name: "--" + unknown.GetSpecifiedName()}
	command.Flags().VisitAll(func(flag *pflag.Flag) { missing.Names = append(missing.Names, "--"+flag.Name) })
	if similar := missing.Similar(); similar != "" {
		return fmt.Errorf("%s has no flag %s; did you mean %s?", path, missing.Name, similar)
	}
	return fmt.Errorf("%s has no flag %s; see %s --help", path, missing.Name, path)
}

// form describes the valid values of a flag of this type. For other types it returns the error.
func form(kind string, err error) string {
	switch kind {
	case "duration":
		return "write a duration such as 30s or 5m"
	case "bool":
		return "must be true or false"
	case "int", "int32", "int64", "uint16", "uint32":
		return "must be a number"
	}
	if err == nil {
		return "invalid value"
	}
	return err.Error()
}

// exclusive matches cobra's error about flags that exclude each other.
var exclusive = regexp.MustCompile(`^if any flags in the group \[(\S+) (\S+)\] are set none of the others can be`)

// Rephrase returns other errors of cobra in the program's words.
func Rephrase(err error) error {
	if found := exclusive.FindStringSubmatch(err.Error()); found != nil {
		return fmt.Errorf("--%s and --%s exclude each other", found[1], found[2])
	}
	return err
}

// Address parses an IP address.
func Address(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		return address, fmt.Errorf("%q is not an IP address; write 203.0.113.1 or 2001:db8:cafe::1", text)
	}
	return address, nil
}

// Socket parses an IP address with a port.
func Socket(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return at, fmt.Errorf("%q is not an address with a port; write 203.0.113.1:80 or [2001:db8:cafe::1]:80", text)
	}
	return at, nil
}
