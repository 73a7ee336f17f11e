// SPDX-License-Identifier: Apache-2.0

package bgp

// Down closes an established session with a Cease, so that the peer retains no stale routes, and reopens it
// (RFC 5882, section 4.2). reason becomes the session's message.
func (s *Server) Down(peer, reason string) error {
	s.mu.Lock()
	session, found := s.sessions[peer]
	s.mu.Unlock()
	if !found {
		return nil
	}
	session.down(reason)
	return nil
}
