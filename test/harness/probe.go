// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Flood is what `echo flood` reports.
type Flood struct {
	Packets int64   `json:"packets"`
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the processor time of the thread that sent, and of what the kernel
	// did within it.
	CPUSeconds float64 `json:"cpuSeconds"`
	Failed     int64   `json:"failed"`
}

// FloodSYN sends SYNs from made-up sources to a VIP, each from a new one.
func (c *Cluster) FloodSYN(ctx context.Context, vip netip.Addr, from netip.Prefix, rate int, duration time.Duration) (Flood, error) {
	var flood Flood
	err := c.echo(ctx, &flood, "flood", "--to", netip.AddrPortFrom(vip, 80).String(), "--from", from.String(),
		"--rate", strconv.Itoa(rate), "--duration", duration.String())
	return flood, err
}

// PathMTU is what `echo mtu` reports.
type PathMTU struct {
	Up   []SizeResult `json:"up"`
	Down []SizeResult `json:"down"`
}

// SizeResult is what became of datagrams of one size that must not be fragmented.
type SizeResult struct {
	Size     int  `json:"size"`
	Answered bool `json:"answered"`
	// Refused reports whether the sender learned that the path is too narrow.
	Refused bool `json:"refused"`
	Lost    int  `json:"lost"`
}

// ProbeMTU sends datagrams of the sizes up from an address of the client to a VIP and
// asks for such of the sizes down, as one flow.
func (c *Cluster) ProbeMTU(ctx context.Context, from, vip netip.Addr, up, down []int) (PathMTU, error) {
	var result PathMTU
	err := c.echo(ctx, &result, "mtu", "--from", from.String(), "--to", netip.AddrPortFrom(vip, 80).String(),
		"--up", list(up), "--down", list(down))
	return result, err
}

func list(numbers []int) string {
	var words []string
	for _, number := range numbers {
		words = append(words, strconv.Itoa(number))
	}
	return strings.Join(words, ",")
}
