// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const table = "millrace_flood"

// encapsulated counts tunnel packets from nodes at the fabric's bridge.
type encapsulated struct{ fabric Fabric }

func countEncapsulated(fabric Fabric) (encapsulated, error) {
	return encapsulated{fabric}, fabric(func(ports []string) error {
		// The VNI follows 8 bytes of UDP and 4 of Geneve (bpf/src/geneve.h).
		rules := fmt.Sprintf(`table netdev %[1]s
delete table netdev %[1]s
table netdev %[1]s {
	counter encapsulated { }
	chain fabric {
		type filter hook ingress devices = { %[2]s } priority 0
		udp dport 6081 @th,96,24 0x4d4c52 counter name encapsulated
	}
}
`, table, strings.Join(ports, ", "))
		command := exec.Command("nft", "-f", "-")
		command.Stdin = strings.NewReader(rules)
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("count encapsulated packets: nft: %w: %s", err, output)
		}
		return nil
	})
}

func (e encapsulated) read() (packets uint64, at time.Time, err error) {
	err = e.fabric(func([]string) error {
		raw, err := exec.Command("nft", "-j", "list", "counter", "netdev", table, "encapsulated").Output()
		at = time.Now()
		if err != nil {
			return fmt.Errorf("read the counter of encapsulated packets: nft: %w", err)
		}
		packets, err = parseCounter(raw)
		return err
	})
	return packets, at, err
}

// parseCounter parses the output of nft (libnftables-json(5)).
func parseCounter(raw []byte) (uint64, error) {
	var list struct {
		Objects []struct {
			Counter *struct {
				Packets uint64 `json:"packets"`
			} `json:"counter"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, fmt.Errorf("read the counter of encapsulated packets: %w: %q", err, raw)
	}
	for _, object := range list.Objects {
		if object.Counter != nil {
			return object.Counter.Packets, nil
		}
	}
	return 0, errors.New("the counter of encapsulated packets is gone")
}

func (e encapsulated) remove() error {
	return e.fabric(func([]string) error {
		if output, err := exec.Command("nft", "delete", "table", "netdev", table).CombinedOutput(); err != nil {
			return fmt.Errorf("remove the counter of encapsulated packets: nft: %w: %s", err, output)
		}
		return nil
	})
}
