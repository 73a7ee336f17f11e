// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func restartOpen(t *testing.T, restart bool) []byte {
	t.Helper()
	families := []*bgp.CapGracefulRestartTuple{
		bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, true), bgp.NewCapGracefulRestartTuple(bgp.RF_IPv6_UC, true),
	}
	message, err := bgp.NewBGPOpenMessage(bgp.AS_TRANS, 90, "198.51.100.1", []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC)}),
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{
			bgp.NewCapFourOctetASNumber(4200000001), bgp.NewCapGracefulRestart(restart, false, 120, families),
		}),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// Only the Restart State bit changes, in a copy.
func TestWithoutRestart(t *testing.T) {
	with, without := restartOpen(t, true), restartOpen(t, false)
	given := bytes.Clone(with)
	if got := withoutRestart(given); !bytes.Equal(got, without) {
		t.Errorf("%x, want %x", got, without)
	}
	if !bytes.Equal(given, with) {
		t.Error("the message itself was changed")
	}
	for _, same := range [][]byte{without, openMessage(t, 64512)} {
		if got := withoutRestart(same); !bytes.Equal(got, same) {
			t.Errorf("%x, want %x", got, same)
		}
	}
	for length := headerLength; length < len(with); length++ {
		if got := withoutRestart(with[:length]); len(got) != length {
			t.Errorf("of %d octets %d are left", length, len(got))
		}
	}
}

// End-of-RIB to a restarted router is delayed (RFC 4724, section 4.1); routes are not.
func TestRestartedRouterGetsEndOfRIBLate(t *testing.T) {
	const pause = time.Second
	for name, restarted := range map[string]bool{"restarted": true, "not restarted": false} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			at := addrPort(listener.Addr())
			peer := model.Peer{
				Name: peerName, Address: at.Addr(), Port: at.Port(), ASN: 4200000001, LocalASN: 64512,
				HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectRetryTime: pause, RestartTime: 120 * time.Second, IPv4: true,
			}
			s := New(Config{Logger: logr.Discard()})
			route := announce.Route{Prefix: netip.MustParsePrefix("203.0.113.10/32"), NextHop: nodeIPv4}
			want := Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: map[string][]announce.Route{peerName: {route}}}
			if err := s.Set(want); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Set(Want{}) })
			t.Cleanup(func() { _ = listener.Close() })
			router, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = router.Close() })
			if err := router.SetDeadline(time.Now().Add(8 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, _ = router.Write(restartOpen(t, restarted))
			_, _ = router.Write(encode(bgp.BGP_MSG_KEEPALIVE))
			var routes time.Time
			for buffer := make([]byte, longestLength); ; {
				message, err := readMessage(router, buffer)
				switch {
				case err != nil:
					t.Fatalf("no End-of-RIB: %v", err)
				case kindOf(message) != bgp.BGP_MSG_UPDATE:
					continue
				case !isEndOfRIB(message):
					routes = time.Now()
					continue
				}
				break
			}
			if routes.IsZero() {
				t.Fatal("the End-of-RIB came before the routes")
			}
			if waited := time.Since(routes); waited > pause/2 != restarted {
				t.Errorf("the End-of-RIB came %s after the routes", waited)
			}
		})
	}
}
