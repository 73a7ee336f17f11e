// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Flood is the report of `echo flood`.
type Flood struct {
	Packets int64   `json:"packets"`
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the CPU time of the sending thread including the kernel's.
	CPUSeconds float64 `json:"cpuSeconds"`
	Failed     int64   `json:"failed"`
}

// FloodSYN sends SYNs to a VIP, each from a new spoofed source.
func (c *Cluster) FloodSYN(ctx context.Context, vip netip.Addr, from netip.Prefix, rate int, duration time.Duration) (Flood, error) {
	var flood Flood
	err := c.echo(ctx, &flood, "flood", "--to", netip.AddrPortFrom(vip, 80).String(), "--from", from.String(),
		"--rate", strconv.Itoa(rate), "--duration", duration.String())
	return flood, err
}

// PathMTU is the report of `echo mtu`.
type PathMTU struct {
	Up   []SizeResult `json:"up"`
	Down []SizeResult `json:"down"`
}

// SizeResult is the result for unfragmented datagrams of one size.
type SizeResult struct {
	Size     int  `json:"size"`
	Answered bool `json:"answered"`
	Refused  bool `json:"refused"`
	Lost     int  `json:"lost"`
}

// ProbeMTU sends datagrams of the sizes up to a VIP and requests answers of the sizes down, as one flow.
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
