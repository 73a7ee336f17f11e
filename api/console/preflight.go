// SPDX-License-Identifier: Apache-2.0

package console

// Preflight represents the result of a node's checks before or after the installation.
type Preflight struct {
	Node     string    `json:"node"`
	Findings []Finding `json:"findings"`
}

// Level is the severity of a Finding.
type Level string

// Levels of findings.
const (
	LevelOK Level = "OK"
	// LevelWarning is a limitation, or needs attention.
	LevelWarning Level = "Warning"
	// LevelFault is a fault that prevents Millrace from working.
	LevelFault Level = "Fault"
)

// Finding represents the result of a check.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Message describes the result, with advice for a warning or fault.
	Message string `json:"message"`
}
