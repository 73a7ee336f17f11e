// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Minimum widths of cut columns, in characters: least keeps names recognizable, tiny is the last resort.
const (
	least = 16
	tiny  = 5
)

type column struct {
	heading string
	// cut allows shortening the column if the table is too wide.
	cut bool
	// optional allows omitting the column if the table is still too wide.
	optional bool
}

type table struct {
	columns []column
	rows    [][]string
}

// lines formats the table in at most width characters; 0: unlimited. Columns that may be cut are shortened
// first, then optional columns are omitted from the right, then all columns are shortened.
func (t *table) lines(width int) []string {
	widths := make([]int, len(t.columns))
	for i, column := range t.columns {
		widths[i] = utf8.RuneCountInString(column.heading)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	if width > 0 {
		t.fit(widths, width)
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

// omitted is the width of a column that is not shown.
const omitted = -2

func (t *table) fit(widths []int, width int) {
	t.shrink(widths, width, least, func(c column) bool { return c.cut })
	for i := len(widths) - 1; i >= 0 && total(widths) > width; i-- {
		if t.columns[i].optional {
			widths[i] = omitted
		}
	}
	t.shrink(widths, width, tiny, func(c column) bool { return c.cut })
	t.shrink(widths, width, tiny, func(column) bool { return true })
}

func total(widths []int) int {
	sum := -2
	for _, width := range widths {
		sum += width + 2
	}
	return sum
}

// shrink cuts the widest of the selected columns until the table fits or all of them have the width to.
func (t *table) shrink(widths []int, width, to int, selected func(column) bool) {
	for left := total(widths) - width; left > 0; left-- {
		widest := -1
		for i, column := range t.columns {
			if selected(column) && widths[i] > to && (widest < 0 || widths[i] > widths[widest]) {
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
		if widths[i] == omitted {
			continue
		}
		cell = cut(cell, widths[i])
		out.WriteString(cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
	}
	return strings.TrimRight(out.String(), " ")
}

// cut removes the middle of text, because names often differ at their end.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	head := width / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-1-head):])
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
