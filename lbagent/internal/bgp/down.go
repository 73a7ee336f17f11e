// SPDX-License-Identifier: Apache-2.0

package bgp

import "fmt"

// Down ends the session with a peer at once and opens it again, as when its hold timer
// expires: the way to the peer is cut (RFC 5882, section 4.2). The peer learns it, where it
// can, by a Cease, and keeps no route as stale. reason is told as the session's message. A
// session that is not there, or not established, stays as it is.
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
