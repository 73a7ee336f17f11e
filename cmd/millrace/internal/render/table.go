// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// least is the width in characters below which no column is cut.
const least = 12

type column struct {
	heading string
	// cut allows shortening the column if the table is too wide.
	cut bool
}

type table struct {
	columns []column
	rows    [][]string
}

// lines formats the table in at most width characters, if cutting columns allows it; 0: unlimited.
func (t *table) lines(width int) []string {
	widths := make([]int, len(t.columns))
	for i, column := range t.columns {
		widths[i] = len(column.heading)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	if width > 0 {
		t.shrink(widths, width)
	}
	headings := make([]string, len(t.columns))
	for i, column := range t.columns {
		headings[i] = column.heading
	}
	lines := []string{line(headings, widths)}
	for _, row := range t.rows {
		lines = append(lines, line(row, widths))
	}
	return lines
}

func (t *table) shrink(widths []int, width int) {
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := -1
		for i, column := range t.columns {
			if column.cut && widths[i] > least && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func line(cells []string, widths []int) string {
	var out strings.Builder
	for i, cell := range cells {
		cell = cut(cell, widths[i])
		out.WriteString(cell)
		if i < len(cells)-1 {
			out.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
	}
	return strings.TrimRight(out.String(), " ")
}

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// wrap breaks text into lines of at most width characters, except longer words; 0 is unlimited.
func wrap(text string, width int) []string {
	words := strings.Fields(text)
	if width <= 0 || len(words) == 0 {
		return []string{strings.Join(words, " ")}
	}
	var lines []string
	current := words[0]
	for _, word := range words[1:] {
		if utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, current)
			current = word
			continue
		}
		current += " " + word
	}
	return append(lines, current)
}

// Fit cuts text to a screen of height lines, and adds the number of omitted lines.
func Fit(text string, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > height {
		left := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… and %d more", left))
	}
	return strings.Join(lines, "\n")
}
