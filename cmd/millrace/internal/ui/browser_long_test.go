// SPDX-License-Identifier: Apache-2.0

//go:build long

package ui_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report/reporttest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/uitest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

const screenshots = "../../../../dist/ui"

type page struct {
	context.Context
	t          *testing.T
	url, token string
	// broken is true in tests with failing requests, which the console logs.
	broken bool

	mu                 sync.Mutex
	requested, results []string
}

func open(t *testing.T, source *uitest.Source) *page {
	t.Helper()
	server, _ := serve(t, source)
	return openAt(t, server.URL, token)
}

func openAt(t *testing.T, url, token string) *page {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.WindowSize(1600, 900))
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(func() {
		cancel()
		stop()
	})
	// The first run starts the browser, which lives as long as its context. Its metrics are processor
	// time, so that limits do not depend on the load of the machine.
	p := &page{Context: ctx, t: t, url: url, token: token}
	p.run(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
		return chromedp.Void{}, err
	})
	var end context.CancelFunc
	p.Context, end = context.WithTimeout(ctx, time.Minute)
	var listening sync.WaitGroup
	t.Cleanup(func() {
		end()
		listening.Wait()
		p.check()
	})
	listen(p, &listening, network.RequestWillBeSent, func(event network.EventRequestWillBeSent) { p.requested = append(p.requested, event.Request.URL) })
	listen(p, &listening, runtime.ExceptionThrown, func(event runtime.EventExceptionThrown) {
		p.results = append(p.results, fmt.Sprintf("%+v", event.ExceptionDetails))
	})
	// Violations of the policy are entries, too.
	listen(p, &listening, log.EntryAdded, func(event log.EventEntryAdded) { p.results = append(p.results, event.Entry.Text) })
	return p
}

func listen[E any](p *page, listening *sync.WaitGroup, of cdp.Event[E], keep func(E)) {
	events := chromedp.Events(p, of)
	listening.Go(func() {
		for event, err := range events {
			if err != nil {
				return
			}
			p.mu.Lock()
			keep(event)
			p.mu.Unlock()
		}
	})
}

func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p, actions...); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.t.Fatalf("%v; the console shows %q", err, p.results)
	}
}

func evaluate[T any](p *page, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p, chromedp.Evaluate[T](expression))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

func (p *page) until(expression string) {
	p.t.Helper()
	if _, err := chromedp.Run(p, chromedp.Poll[bool](expression)); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.t.Fatalf("%s: %v; the console shows %q", expression, err, p.results)
	}
}

func (p *page) selects(id, shown string) {
	p.t.Helper()
	evaluate[string](p, `location.hash = `+quoted(id))
	p.run(chromedp.WaitVisible(chromedp.CSS(shown)))
}

// load opens the page, and returns the processor time of the page's thread until the first drawing.
func (p *page) load(fragment string) time.Duration {
	p.t.Helper()
	p.run(chromedp.Navigate(p.url + "/#token=" + p.token))
	p.until(`performance.getEntriesByName('drawn').length > 0`)
	took := p.processorTime()
	if fragment != "" {
		p.selects(fragment, `#panel .facts`)
	}
	return took
}

func (p *page) processorTime() time.Duration {
	p.t.Helper()
	result, err := chromedp.Run(p, func(ctx context.Context, target *chromedp.Target) (performance.GetMetricsResult, error) {
		return cdp.Call(ctx, target, performance.GetMetrics, cdp.Empty{})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, metric := range result.Metrics {
		if metric.Name == "TaskDuration" {
			return time.Duration(metric.Value * float64(time.Second))
		}
	}
	p.t.Fatal("the browser has no metric TaskDuration")
	return 0
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `\'`) + "'" }

func (p *page) picture(name string) {
	p.t.Helper()
	picture, err := chromedp.Run(p, chromedp.CaptureScreenshot())
	if err := errors.Join(err, os.MkdirAll(screenshots, 0o755), os.WriteFile(filepath.Join(screenshots, name+".png"), picture, 0o644)); err != nil {
		p.t.Fatal(err)
	}
}

// check fails if a request was sent to another host, or the page had an error.
func (p *page) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	host := strings.TrimPrefix(p.url, "http://")
	for _, requested := range p.requested {
		if parsed, err := url.Parse(requested); err != nil || parsed.Host != host {
			p.t.Errorf("the page requested %s", requested)
		}
	}
	if len(p.requested) == 0 {
		p.t.Error("no request was seen")
	}
	for _, result := range p.results {
		if p.broken && strings.HasPrefix(result, "Failed to load resource") {
			continue
		}
		p.t.Errorf("the console shows %s", result)
	}
}

// named fails for an interactive node without a name in the accessibility tree.
func (p *page) named(role string) []string {
	p.t.Helper()
	var names []string
	tree, err := chromedp.Run(p, func(ctx context.Context, target *chromedp.Target) (accessibility.GetFullAXTreeResult, error) {
		return cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	acting := []string{"button", "textbox", "searchbox", "listbox", "option", "combobox", "image", "form"}
	for _, node := range tree.Nodes {
		if node.Ignored || node.Role == nil {
			continue
		}
		kind, name := textOf(node.Role), textOf(node.Name)
		if kind == role {
			names = append(names, name)
		}
		if name == "" && slices.Contains(acting, kind) {
			p.t.Errorf("a %s has no name", kind)
		}
	}
	return names
}

func textOf(value *accessibility.Value) string {
	var text string
	if value != nil {
		_ = json.Unmarshal(value.Value, &text)
	}
	return text
}

func fixture(t *testing.T, name string) *view.State {
	t.Helper()
	return &view.State{Cluster: "lab", Input: reporttest.Load(t, "../render/testdata/"+name)}
}

func TestBrowserHealthy(t *testing.T) {
	source := uitest.NewSource(uitest.Cluster(uitest.Size{Nodes: 6, VIPs: 24, Zones: 3}))
	p := open(t, source)
	p.load("")
	p.picture("healthy")
	for role, want := range map[string]string{
		"option": "node node-001, zone rack1, healthy, 2 of 2 BGP sessions established, announces 24 VIPs", "listbox": "Services",
		"searchbox": "Search", "button": "Switch between dark and light",
	} {
		if names := p.named(role); !slices.Contains(names, want) {
			t.Errorf("no %s %q in %q", role, want, names)
		}
	}
	p.run(chromedp.Click(chromedp.CSS(`#theme`)))
	p.picture("healthy-other-theme")
}

func TestBrowserProblems(t *testing.T) {
	state := uitest.Cluster(uitest.Size{Nodes: 8, VIPs: 20, Zones: 2, Down: 2, NotReady: 1, Unserved: 2})
	source := uitest.NewSource(state)
	source.Hops = []*consoleapi.Trace{
		{Node: "node-001", Interface: "eth0", Steps: []consoleapi.Step{{Name: "row", Text: "1960 of 4096"}}, Verdict: consoleapi.Sent, NextNode: "node-004"},
		{Node: "node-004", Interface: "eth0", Steps: []consoleapi.Step{{Name: "endpoint", Text: "198.18.2.3:8080"}}, Verdict: consoleapi.Delivered, Service: "team-01/mail"},
	}
	source.Pod = "team-01/mail-7d9c5-cb"
	source.Lines = []timeline.Line{{Time: time.Now(), Nodes: []string{"node1"}, Kind: "Session", Text: "BGP session with tor-b lost"}}
	p := open(t, source)
	p.load("")
	p.picture("trouble")
	p.selects(`service/team-01/web`, `section[aria-label="Why not"]`)
	p.picture("trouble-why-not")
	p.selects(`service/team-01/mail`, `form[aria-label="Trace a packet"]`)
	p.run(chromedp.Click(chromedp.CSS(`form[aria-label="Trace a packet"] button`)), chromedp.WaitVisible(chromedp.CSS(`.hop`)),
		chromedp.WaitReady(chromedp.CSS(`circle.stop`)))
	p.picture("trouble-trace")
	stops := evaluate[int](p, `document.querySelectorAll('circle.stop').length`)
	p.run(chromedp.Click(chromedp.CSS(`form[aria-label="History"] button`)), chromedp.WaitVisible(chromedp.CSS(`form[aria-label="History"] + div table`)))
	if stops != 4 {
		t.Errorf("the way has %d stops, want two nodes, the Service and the pod", stops)
	}
	p.selects(`node/node-001`, `section[aria-label="BGP and BFD sessions"]`)
	p.picture("trouble-node")
}

// at returns a fragment of a layer.
func (p *page) at(fragment, shown string) {
	p.t.Helper()
	evaluate[string](p, `location.hash = `+quoted(fragment))
	p.until(contains("#table", shown))
}

func TestBrowserLayers(t *testing.T) {
	source := uitest.NewSource(uitest.Cluster(uitest.Size{Nodes: 6, VIPs: 24, Zones: 3, Unserved: 3}))
	route := routing.Name{Kind: "Ingress", Namespace: "shop", Name: "web"}
	source.Routing = &routing.View{
		Owners: []routing.Owner{{Name: routing.Name{Kind: "IngressClass", Name: "millrace"}, VIPs: []string{"203.0.113.9"}, Rules: []routing.Rule{{
			Route: route, Ports: []string{"443/HTTPS"}, Hostname: "shop.example.com", Match: "/cart",
			Backends: []routing.Backend{{Namespace: "shop", Name: "cart", Endpoints: []string{"198.18.0.1:80"}}},
		}}}},
		Problems: []routing.Problem{{Object: route, Reason: "InvalidCertificate", Message: "Secret shop/web does not exist"}},
	}
	p := open(t, source)
	p.load("")
	p.until(contains("#panel", "3 VIPs") + ` && document.title.startsWith('(1) ')`)
	p.at("?layer=pools", "203.0.113.0/24")
	p.picture("pools")
	p.at("?layer=routes", "shop.example.com")
	p.until(contains("#table", "Secret shop/web does not exist"))
	p.picture("routes")
	evaluate[string](p, `location.hash = '?namespace=team-02&search=mail'`)
	p.until(`document.querySelectorAll('#services .row').length === 1 && document.getElementById('search').value === 'mail'`)
	evaluate[bool](p, `(() => { const field = document.getElementById('namespace'); field.value = 'team-01'; return field.dispatchEvent(new Event('change')); })()`)
	p.until(`location.hash === '#?search=mail&namespace=team-01'`)
}

// TestBrowserNarrow checks that a page of 400 pixels does not scroll sideways.
func TestBrowserNarrow(t *testing.T) {
	p := open(t, uitest.NewSource(uitest.Cluster(uitest.Size{Nodes: 8, VIPs: 20, Zones: 2, Down: 2, NotReady: 1, Unserved: 2})))
	p.run(chromedp.EmulateViewport(400, 850))
	p.load("")
	p.picture("narrow")
	if width := evaluate[int](p, `document.documentElement.scrollWidth`); width > 400 {
		t.Errorf("the page is %d pixels wide", width)
	}
	p.selects(`service/team-01/web`, `section[aria-label="Why not"]`)
	p.picture("narrow-service")
}

func TestBrowserPartial(t *testing.T) {
	state := uitest.Cluster(uitest.Size{Nodes: 8, VIPs: 20, Zones: 2})
	state.Refused = []view.Refusal{{Kind: "pods", Message: "pods is forbidden: may not list in millrace-system"}}
	state.Announcements, state.Traffic = nil, nil
	state.LiveOutage = &view.Outage{Since: time.Now(), Message: "the aggregated API is not installed"}
	p := open(t, uitest.NewSource(state))
	p.load("")
	p.until(contains("#panel", "Some state is unknown"))
	p.picture("partial")
	state = uitest.Cluster(uitest.Size{Nodes: 8, VIPs: 20, Zones: 2})
	state.APIOutage = &view.Outage{Since: time.Now().Add(-time.Minute), Seen: time.Now().Add(-time.Minute), Message: "dial tcp 198.51.100.1:6443: i/o timeout"}
	p = open(t, uitest.NewSource(state))
	p.load("")
	p.until(contains("#notices", "The API server has not answered"))
	p.picture("stale")
}

func TestBrowserEmpty(t *testing.T) {
	p := open(t, uitest.NewSource(fixture(t, "empty")))
	p.load("")
	p.picture("empty")
	p.run(chromedp.WaitVisible(chromedp.CSS(`section[aria-label="Next steps"]`)))
}

// TestBrowserSize limits the processor time and the elements of the first drawing, which are the same
// on a busy machine.
func TestBrowserSize(t *testing.T) {
	for _, size := range []struct {
		name  string
		limit time.Duration
		of    uitest.Size
	}{
		{"100 nodes", 500 * time.Millisecond, uitest.Size{Nodes: 100, VIPs: 1000, Zones: 5, Down: 3, NotReady: 2, Unserved: 4}},
		{"1000 nodes", time.Second, uitest.Size{Nodes: 1000, VIPs: 10000, Zones: 8, Down: 12, NotReady: 3, Unserved: 6}},
	} {
		t.Run(size.name, func(t *testing.T) {
			state := uitest.Cluster(size.of)
			state.Announcements.Items[70].Nodes.Announcing, state.Announcements.Items[70].Announced = 0, nil
			// Two nodes announce this one, as with externalTrafficPolicy: Local.
			two := &state.Announcements.Items[8]
			two.Nodes.Announcing, two.Announced[0].Count, two.Announced[0].NodeRanges = 2, 2, "0-1"
			p := open(t, uitest.NewSource(state))
			took := p.load("")
			t.Logf("%s, %d VIPs: first drawing after %s of processor time", size.name, size.of.VIPs, took.Round(time.Millisecond))
			if took > size.limit {
				t.Errorf("first drawing after %s of processor time, want at most %s", took, size.limit)
			}
			p.picture(strings.ReplaceAll(size.name, " ", "-"))
			if cut := evaluate[int](p, `[...document.querySelectorAll('#totals div')].filter((total) => total.getBoundingClientRect().right > document.getElementById('totals').getBoundingClientRect().right).length`); cut > 0 {
				t.Errorf("the header cuts %d totals", cut)
			}
			if elements := evaluate[int](p, `document.querySelectorAll('*').length`); elements > 2500 {
				t.Errorf("the page has %d elements; want only the visible rows", elements)
			}
			search(t, p, size.of)
			lines(t, p)
		})
	}
}

func search(t *testing.T, p *page, size uitest.Size) {
	address := netip.AddrFrom4([4]byte{203, 0, 113, 7}).String()
	began := time.Now()
	p.run(chromedp.KeyEvent("/"))
	p.until(`document.activeElement.id === 'search'`)
	// The browser's driver writes the slash, too, unlike a keyboard.
	evaluate[string](p, `document.getElementById('search').value = ''`)
	p.run(chromedp.KeyEvent(address))
	p.until(`document.getElementById('search').value === '` + address + `'`)
	p.run(chromedp.KeyEvent("\r"))
	p.until(`location.hash !== ''`)
	p.run(chromedp.WaitVisible(chromedp.CSS(`#panel .facts`)))
	t.Logf("a VIP was found among %d within %s", size.VIPs, time.Since(began).Round(time.Millisecond))
	if nodes := evaluate[int](p, `document.querySelectorAll('#nodes .row').length`); nodes == 0 {
		t.Error("a search for a Service leaves no node, on which a trace could be drawn")
	}
	if hash := evaluate[string](p, `location.hash`); hash != "#service/team-01/dns?search="+address {
		t.Errorf("%s leads to %s", address, hash)
	}
	p.picture(strings.ReplaceAll(t.Name(), "/", "-") + "-search")
}

func drawn(p *page, from, to string) int {
	p.t.Helper()
	return evaluate[int](p, fmt.Sprintf(`(() => {
		const end = document.getElementById(%s).getBoundingClientRect().right, begin = document.getElementById(%s).getBoundingClientRect().left;
		const frame = document.getElementById('edges').getBoundingClientRect().left;
		return [...document.querySelectorAll('path.edge.strong')].filter((path) => {
			const [x1] = path.getAttribute('d').match(/[\d.]+/g).map(Number), x2 = Number(path.getAttribute('d').match(/[\d.]+/g).at(-2));
			return Math.abs(x1 + frame - end) < 2 && Math.abs(x2 + frame - begin) < 2;
		}).length;
	})()`, quoted(from), quoted(to)))
}

// lines checks the lines of Services that two nodes or all announce, a node in a closed group, and a
// router.
func lines(t *testing.T, p *page) {
	evaluate[string](p, `document.getElementById('search').value = ''`)
	evaluate[bool](p, `document.getElementById('search').dispatchEvent(new Event('input'))`)
	for _, test := range []struct {
		id, shown         string
		routers, services int
		exact             bool
	}{
		{"service/team-02/web", "#panel .facts", 4, 2, true},
		{"service/team-01/dns", "#panel .facts", 10, 5, false},
		{"node/node-100", `section[aria-label="BGP and BFD sessions"]`, 2, 10, false},
		{"router/tor-a", `section[aria-label="BGP and BFD sessions"]`, 5, 0, false},
		{"zone/rack2", "#panel .facts", 2, 0, false},
	} {
		began := time.Now()
		p.selects(test.id, test.shown)
		p.until(`document.querySelectorAll('.row.selected').length === 1`)
		took := time.Since(began)
		routers, services := drawn(p, "routers", "nodes"), drawn(p, "nodes", "services")
		t.Logf("%s: %d lines from routers, %d to Services, after %s", test.id, routers, services, took.Round(time.Millisecond))
		if routers < test.routers || services < test.services || test.exact && (routers != test.routers || services != test.services) {
			t.Errorf("%s has %d lines from routers and %d to Services, want %d and %d", test.id, routers, services, test.routers, test.services)
		}
		p.picture(strings.ReplaceAll(t.Name()+"-"+test.id, "/", "-"))
	}
	if shares := evaluate[int](p, `document.querySelectorAll('#nodes .share').length`); shares != 0 {
		t.Errorf("%d groups show how many nodes announce a Service, and none is selected", shares)
	}
}

// Text of the cluster is never interpreted as HTML.
func TestBrowserEscapesText(t *testing.T) {
	const markup = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	state := uitest.Cluster(uitest.Size{Nodes: 2, VIPs: 2, Zones: 1, Down: 1})
	state.Cluster = markup
	state.Input.LBNodes[0].Spec.Zone = markup
	for i := range state.Input.LBNodeReports[0].Status.Conditions {
		state.Input.LBNodeReports[0].Status.Conditions[i].Message = markup
	}
	state.Input.LBNodeReports[0].Status.Sessions[1].Message = markup
	state.Refused = []view.Refusal{{Kind: "pods", Message: markup}}
	p := open(t, uitest.NewSource(state))
	p.load("node/node-001")
	title, images := evaluate[string](p, `document.title`), evaluate[int](p, `document.querySelectorAll('img, main script').length`)
	if title == "owned" || images > 0 {
		t.Errorf("the text became %d elements, and the title %q", images, title)
	}
}
