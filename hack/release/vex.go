// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"os"
	"path/filepath"
)

const vexFile = "millrace.openvex.json"

// vex is an OpenVEX document of the advisories for GoBGP that do not affect the programs. Its functions are those
// of the Go vulnerability database; review it if the version of GoBGP changes.
//
//go:embed millrace.openvex.json
var vex []byte

func writeVEX(c configuration) error {
	return os.WriteFile(filepath.Join(c.output, vexFile), vex, 0o644)
}
