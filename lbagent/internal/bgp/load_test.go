// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// prefixesIn returns the number of announced IPv4 prefixes of an UPDATE, all of 32 bits.
func prefixesIn(update []byte) int {
	body := update[headerLength:]
	body = body[2+binary.BigEndian.Uint16(body):]
	return (len(body) - 2 - int(binary.BigEndian.Uint16(body))) / 5
}

// BenchmarkPeers announces 20,000 routes to eight routers on the loopback interface, closes a session from
// the router's side, and changes the MED of all routes. It reports times, CPU time of the process including
// the routers, UPDATEs to each router, and the resident set size.
func BenchmarkPeers(b *testing.B) {
	const routers, many = 8, 20_000
	table := func(med uint32) (routes []announce.Route) {
		for i := range many {
			route := testRoute(netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)}).String())
			route.MED = &med
			routes = append(routes, route)
		}
		return routes
	}
	for b.Loop() {
		var prefixes, updates [routers]atomic.Int64
		var conns [routers]atomic.Pointer[rawConn]
		want := Want{RouterID: nodeIPv4, Routes: announce.Routes{}}
		for i := range routers {
			r := newRawRouter(b, func(_ int, conn *rawConn) {
				conns[i].Store(conn)
				_, _ = conn.Write(slices.Concat(openMessage(b, 64500), encode(bgp.BGP_MSG_KEEPALIVE)))
				for {
					message, more := conn.await(bgp.BGP_MSG_UPDATE)
					if !more {
						return
					}
					updates[i].Add(1)
					prefixes[i].Add(int64(prefixesIn(message)))
				}
			})
			peer := r.peer(fmt.Sprint("router", i))
			peer.ConnectRetryTime = 3 * time.Second
			peer.HoldTime, peer.KeepaliveTime = 90*time.Second, 30*time.Second
			want.Peers = append(want.Peers, peer)
			want.Routes[peer.Name] = table(1)
		}
		s := New(Config{})
		await := func(what string, count int64, of ...int) {
			began, cpu := time.Now(), processorTime()
			for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(200 * time.Microsecond) {
				if !slices.ContainsFunc(of, func(i int) bool { return prefixes[i].Load() < count }) {
					break
				}
				if time.Now().After(deadline) {
					b.Fatal(what)
				}
			}
			b.ReportMetric(float64(time.Since(began))/1e6, what+"-ms")
			b.ReportMetric(float64(processorTime()-cpu)/1e6, what+"-cpu-ms")
			b.ReportMetric(float64(resident(b))/(1<<20), what+"-MiB")
		}
		all := []int{0, 1, 2, 3, 4, 5, 6, 7}
		go func() { _ = s.Set(want) }()
		await("set", many, all...)
		time.Sleep(4 * time.Second) // Longer than ConnectRetryTime, so that the first pause applies.
		for i := range all {
			prefixes[i].Store(0)
			b.ReportMetric(float64(updates[i].Swap(0)), "set-updates")
		}
		_ = conns[0].Load().SetLinger(0)
		_ = conns[0].Load().Close()
		await("lost", many, 0)
		time.Sleep(time.Second)
		prefixes[0].Store(0)
		updates[1].Store(0)
		for name := range want.Routes {
			want.Routes[name] = table(2)
		}
		go func() { _ = s.Set(want) }()
		await("med", many, all...)
		b.ReportMetric(float64(updates[1].Load()), "med-updates")
		_ = s.Set(Want{})
	}
}

func processorTime() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func resident(t testing.TB) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
