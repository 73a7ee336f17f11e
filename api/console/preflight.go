// SPDX-License-Identifier: Apache-2.0

package console

// Preflight is what a node finds of itself before Millrace is installed, or after it.
type Preflight struct {
	Node     string    `json:"node"`
	Findings []Finding `json:"findings"`
}

// Level says how bad a Finding is.
type Level string

// Levels.
const (
	LevelOK Level = "OK"
	// LevelWarning works, but slower or less than it could, or has to be looked at.
	LevelWarning Level = "Warning"
	// LevelFault keeps Millrace from working.
	LevelFault Level = "Fault"
)

// Finding is the result of a check.
type Finding struct {
	// Check is its name, such as kernel.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Message says what is found, and of a warning or fault what to do.
	Message string `json:"message"`
}
