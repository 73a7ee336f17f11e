// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"regexp"
	"strings"
)

const readmeHead = `# Millrace

Load balancer for Kubernetes clusters on their own hardware, by XDP and BGP.

    helm install millrace millrace-VERSION.tgz --namespace kube-system --wait

[Installation](https://github.com/millrace-lb/millrace/blob/main/docs/install.md) describes prerequisites,
upgrades and uninstallation.

| Value | Default | Meaning |
|---|---|---|
`

var valueLine = regexp.MustCompile(`^( *)([A-Za-z]+):(?: (.*))?$`)

// readme returns the README of the chart with a table of the values. Each value is described by the comments
// above it.
func readme(values string) string {
	var out strings.Builder
	out.WriteString(readmeHead)
	var path, comments []string
	for line := range strings.Lines(values) {
		line = strings.TrimSuffix(line, "\n")
		if comment, is := strings.CutPrefix(strings.TrimLeft(line, " "), "# "); is {
			comments = append(comments, comment)
			continue
		}
		found := valueLine.FindStringSubmatch(line)
		if found == nil {
			comments = nil
			continue
		}
		path = append(path[:len(found[1])/2], found[2])
		meaning := strings.ReplaceAll(strings.Join(comments, " "), "|", `\|`)
		if found[3] == "" && meaning == "" {
			continue
		}
		fmt.Fprintf(&out, "| `%s` | `%s` | %s |\n", strings.Join(path, "."), found[3], meaning)
		comments = nil
	}
	return strings.ReplaceAll(out.String(), "| `` |", "| |")
}
