// SPDX-License-Identifier: Apache-2.0

package bgp

import "fmt"

// Down closes an established session with a Cease, so that the peer retains no stale routes, and reopens it
// (RFC 5882, section 4.2). reason becomes the session's message.
func (s *Server) Down(peer, reason string) error {
	s.mu.Lock()
	session, found := s.sessions[peer]
	s.mu.Unlock()
	if !found {
		return nil
	}
	if err := session.down(reason); err != nil {
		return fmt.Errorf("LBPeer %s (%s): %w", peer, session.peer.Address, err)
	}
	return nil
}

func (s *session) down(reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || !s.observed.established() {
		return nil
	}
	s.transport.mute()
	s.observed.fail(reason)
	return s.reopen(false)
}
