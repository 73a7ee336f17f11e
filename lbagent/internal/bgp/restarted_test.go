// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

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

// isEndOfRIB recognizes an empty UPDATE and an empty MP_UNREACH_NLRI alone (RFC 4724, section 2).
func isEndOfRIB(message []byte) bool {
	return len(message) == headerLength+4 || bytes.Equal(message, endOfRIBMessage(bgp.AFI_IP6))
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
			s := New(Config{})
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
			for buffer := make([]byte, maxMessageLength); ; {
				message, err := readMessage(router, buffer)
				switch {
				case err != nil:
					t.Fatalf("no End-of-RIB: %v", err)
				case messageType(message) != bgp.BGP_MSG_UPDATE:
					continue
				case !isEndOfRIB(message):
					routes = time.Now()
					continue
				}
				break
			}
			if routes.IsZero() {
				t.Fatal("the End-of-RIB was received before the routes")
			}
			if waited := time.Since(routes); waited > pause/2 != restarted {
				t.Errorf("the End-of-RIB was received %s after the routes", waited)
			}
		})
	}
}
