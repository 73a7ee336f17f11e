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
	// lastWords is how long the end of a connection may take once GoBGP has left it: the
	// router must get the NOTIFICATION, and need not want to.
	lastWords = 2 * time.Second
	// openTimeout is how long a router that is connected has for its OPEN. RFC 4271, section
	// 8.2.2, suggests four minutes, in which nobody would be told why nothing happens.
	openTimeout = 10 * time.Second
	// keepalives of a router, or UPDATEs in their place, GoBGP sees at once; beyond, one each
	// keepalivePause. The shortest hold time is three seconds.
	keepalives     = 16
	keepalivePause = 500 * time.Millisecond
	// refreshes a router may ask for at once; beyond, one each refreshPause.
	refreshes    = 8
	refreshPause = time.Second
	// queued messages of GoBGP's wait for the connection.
	queued = 16
	// acceptedAtOnce connections may come from routers; beyond, one each acceptPause.
	acceptedAtOnce = 64
	acceptPause    = 2 * time.Millisecond
	// readAtOnce messages of a router are read as fast as they come; beyond, one each readPause. A
	// full table in one UPDATE for each fourth route is read at once.
	readAtOnce = 250_000
	readPause  = 100 * time.Microsecond
	// throttledFor is for how long a router that sent too much is told to.
	throttledFor = 10 * time.Second
	// readBuffer is what is read at once, in octets: thousands of small messages cost few system calls.
	readBuffer = 1 << 14
)

// transport carries the messages of a session between GoBGP and the router. GoBGP connects to
// a listener on the loopback interface, and the transport connects to the router. So the
// router's socket is ours: its options are set before the first packet, it can be closed
// without a NOTIFICATION, a failure is known from the connection and from NOTIFICATIONs, and
// GoBGP never sees, or keeps, what the router announces.
type transport struct {
	listener *net.TCPListener
	// self is the node's BGP identifier.
	self     netip.Addr
	observed *observed
	// confirm is that of Config.
	confirm func(ctx context.Context)
	done    chan struct{}
	cancel  context.CancelFunc
	// begun is closed when the router may be connected to.
	begun chan struct{}
	// offered has the next connection with the router, until it is used.
	offered chan arrival

	// received counts the router's UPDATEs, sent ours.
	received, sent atomic.Uint64
	// throttled is for how long, in nanoseconds, the router's messages were left unread, being too many;
	// throttledAt is when that was last, in nanoseconds of Unix time.
	throttled, throttledAt atomic.Int64

	mu       sync.Mutex
	peer     model.Peer
	password string
	// attempt is when the router was last connected to; attempts are those of the row.
	attempt  time.Time
	attempts int
	router   *net.TCPConn
	// pending are connections of a passive peer's router that may replace the one of now.
	pending []*net.TCPConn
	// carried is the connection of now; nil where there is none.
	carried *connection
	// ended is closed when the connection of now has ended; verdict is what it ended with.
	ended   chan struct{}
	verdict verdict
}

// verdict is how a connection ended.
type verdict struct {
	// lost is true where no NOTIFICATION told the router to forget our routes.
	lost bool
}

// newTransport listens for GoBGP, which has an identifier. close must be called.
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

// address is where GoBGP connects to.
func (t *transport) address() netip.AddrPort { return addrPort(t.listener.Addr()) }

// begin has the router connected to. Before that, GoBGP's OPEN waits. It is called once.
func (t *transport) begin() { close(t.begun) }

// configure says how the next connection to the router is made.
func (t *transport) configure(peer model.Peer, password string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peer, t.password = peer, password
}

// retrySoon begins a new row of attempts to connect, whose first pauses are short.
func (t *transport) retrySoon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts = 0
}

// local is our end of the connection with the router; invalid where there is none.
func (t *transport) local() netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.router == nil {
		return netip.AddrPort{}
	}
	return addrPort(t.router.LocalAddr())
}

// withheld are the families of the peer's whose routes the router of the connection of now does not
// take, and why; empty without a connection.
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

// leave ends the connection without a NOTIFICATION: a router that helps with graceful restart
// keeps our routes (RFC 4724, section 4.2).
func (t *transport) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.router != nil {
		_ = t.router.Close()
	}
}

// mute has the end of the connection of now, which the caller knows the reason of, not told.
// GoBGP is about to leave it.
func (t *transport) mute() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried != nil {
		t.carried.told.Store(true)
		t.carried.hurry()
		t.verdict.lost = false
	}
}

// hurry bounds how long the connection of now goes on once GoBGP leaves it. Otherwise a router
// that takes nothing would hold it, and all that wait for its end, for as long as TCP tries.
func (t *transport) hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.carried != nil {
		t.carried.hurry()
	}
}

// wait returns how the connection of now, which GoBGP has left, ended, or the last one.
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

// close ends the transport after GoBGP's last words have been carried to the router.
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

// run carries messages until ctx is done and the connection of then has ended. GoBGP has one
// connection at a time: a new one says that it has left the one before.
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
			// For want of descriptors or memory: others may give some back.
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

// serve carries the messages of one connection of GoBGP's. Connections that the router ends
// before its OPEN are not GoBGP's business, which would wait for seconds after each: its OPEN
// goes over the next one.
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

// readAll puts messages into a queue until there are no more, or nobody wants them.
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

// connect connects to the router, trying again after each retryPause, until ctx is done. A
// session that was lost soon after the attempt waits for the rest of the pause.
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

// fail notes why there is no session, and what else keeps it from being there.
func (t *transport) fail(message string) {
	t.mu.Lock()
	peer := t.peer
	t.mu.Unlock()
	if other := otherSpeaker(&peer); other != "" {
		message += "; " + other
	}
	t.observed.fail(message)
}

// throttle notes that the router's messages were left unread for some time.
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

// untilUnthrottled has it told when the router sends no longer too much.
func (t *transport) untilUnthrottled() {
	if t.throttles(time.Now()) {
		time.AfterFunc(throttledFor, t.untilUnthrottled)
		return
	}
	t.observed.notify()
}

// throttles reports whether the router sent too much of late.
func (t *transport) throttles(now time.Time) bool {
	return now.UnixNano()-t.throttledAt.Load() <= int64(throttledFor)
}

// budget lets a number of events pass at once, then one in each pause.
type budget struct {
	most  int
	pause time.Duration
	at    time.Time
}

func newBudget(most int, pause time.Duration) *budget { return &budget{most: most, pause: pause} }

// ahead is how long an event would have to wait.
func (b *budget) ahead(now time.Time) time.Duration {
	if b.at.Before(now) {
		b.at = now
	}
	return b.at.Add(b.pause).Sub(now) - time.Duration(b.most)*b.pause
}

// has reports whether an event may pass at once, which it takes.
func (b *budget) has(now time.Time) bool {
	if b.ahead(now) > 0 {
		return false
	}
	b.at = b.at.Add(b.pause)
	return true
}

// spend takes an event, and returns after how long it may pass.
func (b *budget) spend(now time.Time) time.Duration {
	ahead := b.ahead(now)
	b.at = b.at.Add(b.pause)
	return ahead
}

// take waits until an event may pass, and returns for how long.
func (b *budget) take() time.Duration {
	now := time.Now()
	ahead := b.spend(now)
	if ahead <= 0 {
		return 0
	}
	time.Sleep(ahead)
	return time.Since(now)
}
