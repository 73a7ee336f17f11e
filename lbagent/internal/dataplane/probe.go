// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// silence is AGENT_NANOSECONDS of bpf/src/agent_heartbeat.h.
const silence = 4 * time.Second

// Beat records that the agent runs and the maps are current. Four seconds after the last call, the program
// answers probes with the state "agent silent", and leaves new flows to other nodes. Without any call the
// agent counts as running.
func (d *Dataplane) Beat() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the kernel's time: %w", err)
	}
	var beats bpf.DatapathAgentHeartbeats
	if err := d.maps.AgentHeartbeat.Lookup(uint32(0), &beats); err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapAgentHeartbeat, err)
	}
	previous := beats.Beat
	beats.Beat = uint64(now.Nano())
	if previous != 0 && beats.Beat-previous >= uint64(silence) {
		beats.Returned = beats.Beat
	}
	return write(d.maps.AgentHeartbeat, bpf.DatapathMapAgentHeartbeat, "the agent's heartbeat", uint32(0), beats)
}

// SetProbeKeys sets the keys that authenticate probes and their replies. Without keys all probes are ignored,
// so a zero key, as set by a node that lost the tunnel's keys, never replaces existing ones: other nodes
// would consider it failed.
func (d *Dataplane) SetProbeKeys(keys [][16]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var secrets, have bpf.DatapathProbeKeys
	if len(keys) > len(secrets.Key) {
		return fmt.Errorf("set the keys of probes: %d keys at once, want at most %d", len(keys), len(secrets.Key))
	}
	for i, key := range keys {
		secrets.Key[i] = [2]uint64{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
	}
	secrets.Count = uint32(len(keys))
	if err := d.maps.ProbeSecrets.Lookup(uint32(0), &have); err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapProbeSecrets, err)
	}
	if have == secrets || have.Count > 0 && len(keys) == 1 && keys[0] == ([16]byte{}) {
		return nil
	}
	return write(d.maps.ProbeSecrets, bpf.DatapathMapProbeSecrets, "the keys of probes", uint32(0), secrets)
}
