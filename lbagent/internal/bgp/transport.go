// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// lastWords bounds the end of a connection after GoBGP has closed it, to deliver the NOTIFICATION.
	lastWords = 2 * time.Second
	// openTimeout is less than the four minutes of RFC 4271, section 8.2.2, so that the status shows an
	// error.
	openTimeout = 10 * time.Second
	// keepalives is the burst of KEEPALIVEs, or UPDATEs in their place, passed to GoBGP, then one per
	// keepalivePause. The shortest hold time is three seconds.
	keepalives     = 16
	keepalivePause = 500 * time.Millisecond
	// refreshes is the burst of ROUTE-REFRESH requests, then one per refreshPause.
	refreshes    = 8
	refreshPause = time.Second
	// queued bounds GoBGP's messages that wait for the connection.
	queued = 16
	// acceptedAtOnce is the burst of accepted connections, then one per acceptPause.
	acceptedAtOnce = 64
	acceptPause    = 2 * time.Millisecond
	// readAtOnce is the burst of a router's messages, enough for a full table, then one per readPause.
	readAtOnce = 250_000
	readPause  = 100 * time.Microsecond
	// throttledFor is how long a session is shown as throttled.
	throttledFor = 10 * time.Second
	// readBuffer is in octets.
	readBuffer = 1 << 14
)

// transport relays the messages of a session between the router and GoBGP, which connects to a loopback
// listener. It owns the router's socket, so it sets options before the SYN, can close without a
// NOTIFICATION, observes the cause of failures, and keeps the router's routes from GoBGP.
type transport struct {
	listener *net.TCPListener
	self     netip.Addr
	observed *observed
	confirm  func(ctx context.Context)
	done     chan struct{}
	cancel   context.CancelFunc
	begun    chan struct{}
	// offered holds the next connection with the router until it is used.
	offered chan arrival

	// received and sent count UPDATEs.
	received, sent atomic.Uint64
	// throttled is the total time of leaving the router's messages unread, and throttledAt its last Unix
	// time, both in nanoseconds.
	throttled, throttledAt atomic.Int64

	mu       sync.Mutex
	peer     model.Peer
	password string
	attempt  time.Time
	attempts int
	router   *net.TCPConn
	// pending are connections of a passive peer's router that may replace the current one.
	pending []*net.TCPConn
	carried *connection
	ended   chan struct{}
	verdict verdict
}

type verdict struct {
	// lost is true if no NOTIFICATION made the router remove our routes.
	lost bool
}

// newTransport starts a transport for a node with the BGP identifier self. The caller must call close.
func newTransport(self netip.Addr, observed *observed, confirm func(ctx context.Context)) (*transport, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("listen on the loopback address for the BGP speaker: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if confirm == nil {
		confirm = func(context.Context) {}
	}
	t := &transport{
		listener: listener, self: self, observed: observed, confirm: confirm, done: make(chan struct{}), cancel: cancel,
		begun: make(chan struct{}), offered: make(chan arrival, 1),
	}
	go t.run(ctx)
	return t, nil
}

func (t *transport) address() netip.AddrPort { return addrPort(t.listener.Addr()) }

// begin permits connections to the router. It is called once.
func (t *transport) begin() { close(t.begun) }

func (t *transport) configure(peer model.Peer, password string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peer, t.password = peer, password
}

func (t *transport) retrySoon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts = 0
}

// local returns our end of the connection with the router; invalid without one.
func (t *transport) local() netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.router == nil {
		return netip.AddrPort{}
	}
	return addrPort(t.router.LocalAddr())
}

// withheld returns the peer's families that the connected router does not accept, and why.
func (t *transport) withheld() (families []millracev1beta1.AddressFamily, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried == nil {
		return nil, ""
	}
	opened := t.carried.opened.Load()
	if opened == nil {
		return nil, ""
	}
	var reasons []string
	const inactive = "%s routes are withheld: the router does not offer the family (activate it there)"
	switch {
	case t.peer.IPv4 && !opened.offered.ipv4:
		families, reasons = append(families, millracev1beta1.FamilyIPv4), append(reasons, fmt.Sprintf(inactive, "IPv4"))
	case t.peer.IPv4 && t.peer.ExtendedNextHop && !opened.extended:
		families = append(families, millracev1beta1.FamilyIPv4)
		reasons = append(reasons, "IPv4 routes are withheld: the router does not offer IPv6 next hops for them (extended next hop, RFC 8950)")
	}
	if t.peer.IPv6 && !opened.offered.ipv6 {
		families, reasons = append(families, millracev1beta1.FamilyIPv6), append(reasons, fmt.Sprintf(inactive, "IPv6"))
	}
	return families, strings.Join(reasons, "; ")
}

// leave sends no NOTIFICATION, so a graceful restart helper retains our routes (RFC 4724, section 4.2).
func (t *transport) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.router != nil {
		_ = t.router.Close()
	}
}

// mute suppresses the close reason of the current connection; the caller reports it.
func (t *transport) mute() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried != nil {
		t.carried.told.Store(true)
		t.carried.hurry()
		t.verdict.lost = false
	}
}

// hurry bounds how long the current connection outlives GoBGP's close. Otherwise TCP's timeout applies.
func (t *transport) hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried != nil {
		t.carried.hurry()
	}
}

// wait blocks until the current connection, which GoBGP has closed, has ended.
func (t *transport) wait(ctx context.Context) verdict {
	t.hurry()
	t.mu.Lock()
	ended := t.ended
	t.mu.Unlock()
	if ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.verdict
}

// close ends the transport after GoBGP's last messages are sent, or after lastWords.
func (t *transport) close() {
	_ = t.listener.Close()
	select {
	case <-t.done:
	case <-time.After(lastWords):
	}
	t.cancel()
	t.leave()
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	t.withdrawOffer()
	for _, conn := range t.pending {
		_ = conn.Close()
	}
	t.pending = nil
}

// run serves one connection of GoBGP at a time, because a new one implies that the previous one is closed.
func (t *transport) run(ctx context.Context) {
	defer close(t.done)
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		speaker, err := t.listener.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Descriptors or memory are exhausted: retry.
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			continue
		}
		if !isOwn(speaker) {
			_ = speaker.Close()
			continue
		}
		t.hurry()
		serving.Wait()
		serving.Go(func() {
			t.serve(ctx, speaker)
			_ = speaker.Close()
		})
	}
}

// serve relays one connection of GoBGP. If the router closes before its OPEN, the next router connection
// reuses GoBGP's OPEN, because GoBGP would wait for seconds.
func (t *transport) serve(ctx context.Context, speaker *net.TCPConn) {
	ended := make(chan struct{})
	t.mu.Lock()
	t.ended, t.verdict = ended, verdict{lost: true}
	t.mu.Unlock()
	defer close(ended)
	defer t.observed.phase("")

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan []byte, queued)
	go func() {
		defer cancel()
		defer close(queue)
		readAll(speaker, queue, ended)
	}()
	open, is := <-queue
	select {
	case <-t.begun:
	case <-ctx.Done():
	}
	for again := is; again; {
		next, err := t.connect(ctx)
		if err != nil {
			return
		}
		if t.confirm(ctx); ctx.Err() != nil {
			_ = next.router.Close()
			t.mu.Lock()
			t.router = nil
			t.mu.Unlock()
			return
		}
		c := &connection{transport: t, speaker: speaker, router: next.router, early: next.open}
		t.mu.Lock()
		t.carried, t.verdict = c, verdict{lost: true}
		t.mu.Unlock()
		again = c.carry(open, queue)
		t.mu.Lock()
		t.router, t.carried = nil, nil
		t.mu.Unlock()
	}
}

func readAll(from io.Reader, queue chan<- []byte, unwanted <-chan struct{}) {
	for {
		message, err := readMessage(from, make([]byte, longestLength))
		if err != nil {
			return
		}
		select {
		case queue <- message:
		case <-unwanted:
			return
		}
	}
}

// connect retries until ctx is done. The pause also applies after a session that was lost soon.
func (t *transport) connect(ctx context.Context) (arrival, error) {
	for {
		t.mu.Lock()
		peer, last, attempts := t.peer, t.attempt, t.attempts
		t.mu.Unlock()
		if peer.Passive {
			return t.accept(ctx, &peer)
		}
		select {
		case next := <-t.offered:
			t.take(next)
			return next, nil
		default:
		}
		pause := retryPause(attempts, peer.ConnectRetryTime, rand.Float64())
		if wait := time.Until(last.Add(pause)); wait > 0 {
			t.observed.phase(millracev1beta1.SessionActive)
			select {
			case <-ctx.Done():
				return arrival{}, ctx.Err()
			case <-time.After(wait):
			}
		}
		t.mu.Lock()
		t.attempt = time.Now()
		t.attempts++
		peer = t.peer
		password := t.password
		t.mu.Unlock()
		t.observed.phase(millracev1beta1.SessionConnect)
		router, err := dial(ctx, &peer, password, peer.ConnectRetryTime)
		if ctx.Err() != nil {
			if router != nil {
				_ = router.Close()
			}
			return arrival{}, ctx.Err()
		}
		if err == nil {
			next := arrival{router: router}
			t.take(next)
			return next, nil
		}
		t.fail(err.Error())
	}
}

// fail records why the session is down, with a connection of another speaker, if any.
func (t *transport) fail(message string) {
	t.mu.Lock()
	peer := t.peer
	t.mu.Unlock()
	if other := otherSpeaker(&peer); other != "" {
		message += "; " + other
	}
	t.observed.fail(message)
}

func (t *transport) throttle(unread time.Duration) {
	if unread == 0 {
		return
	}
	t.throttled.Add(int64(unread))
	now := time.Now()
	if last := t.throttledAt.Swap(now.UnixNano()); now.UnixNano()-last > int64(throttledFor) {
		t.observed.notify()
		time.AfterFunc(throttledFor+time.Second, t.untilUnthrottled)
	}
}

func (t *transport) untilUnthrottled() {
	if t.throttles(time.Now()) {
		time.AfterFunc(throttledFor, t.untilUnthrottled)
		return
	}
	t.observed.notify()
}

func (t *transport) throttles(now time.Time) bool {
	return now.UnixNano()-t.throttledAt.Load() <= int64(throttledFor)
}

// budget permits a burst of events, then one per pause.
type budget struct {
	most  int
	pause time.Duration
	at    time.Time
}

func newBudget(most int, pause time.Duration) *budget { return &budget{most: most, pause: pause} }

func (b *budget) ahead(now time.Time) time.Duration {
	if b.at.Before(now) {
		b.at = now
	}
	return b.at.Add(b.pause).Sub(now) - time.Duration(b.most)*b.pause
}

// has spends an event if it may pass now.
func (b *budget) has(now time.Time) bool {
	if b.ahead(now) > 0 {
		return false
	}
	b.at = b.at.Add(b.pause)
	return true
}

// spend returns the delay of the event, which may be negative.
func (b *budget) spend(now time.Time) time.Duration {
	ahead := b.ahead(now)
	b.at = b.at.Add(b.pause)
	return ahead
}

func (b *budget) take() time.Duration {
	now := time.Now()
	ahead := b.spend(now)
	if ahead <= 0 {
		return 0
	}
	time.Sleep(ahead)
	return time.Since(now)
}
