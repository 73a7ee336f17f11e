// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/millrace-lb/millrace/api/canary"
)

// Verdicts writes which nodes the routers reach.
func Verdicts(out io.Writer, verdicts []canary.Verdict, options Options) error {
	if options.Format == JSON {
		return encode(out, options.Format, map[string]any{"routers": verdicts})
	}
	t := &table{columns: []column{
		{heading: "PEER", cut: true}, {heading: "ROUTER"}, {heading: "CANARY"}, {heading: "NODE", cut: true}, {heading: "ANNOUNCES"},
		{heading: "REACHED FROM"}, {heading: "UNANSWERED"}, {heading: "MTU"}, {heading: "VERDICT"},
	}}
	var remarks []string
	for i := range verdicts {
		verdict := &verdicts[i]
		for _, node := range verdict.Nodes {
			unanswered, length := unknown, "ok"
			if node.Unanswered != nil {
				unanswered = fmt.Sprintf("%d/%d", *node.Unanswered, canary.Ports)
			}
			if node.Short {
				length = "lost"
			}
			t.rows = append(t.rows, []string{
				verdict.Peer, verdict.Address, verdict.Canary, node.Name, yesNo(node.Announces),
				fmt.Sprintf("%d/%d", node.ReachedBy, max(1, len(verdict.Nodes)-1)), unanswered, length, verdict.Reason,
			})
		}
		if verdict.Message != "" {
			remarks = append(remarks, fmt.Sprintf("Router %s, canary %s: %s.", verdict.Address, verdict.Canary, verdict.Message))
		}
	}
	lines := t.lines(options.width())
	for _, remark := range remarks {
		lines = append(lines, wrap(remark, options.width())...)
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
