// SPDX-License-Identifier: Apache-2.0

//go:build long

package ui_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/uitest"
)

func focused(column, label string) string {
	return `(() => {
		const list = document.querySelector('#` + column + ` .list');
		const row = document.getElementById(list.getAttribute('aria-activedescendant') ?? '');
		if (document.activeElement !== list || !row || !row.getAttribute('aria-label').startsWith(` + quoted(label) + `)) return false;
		const look = getComputedStyle(row);
		return look.outlineStyle === 'solid' && parseFloat(look.outlineWidth) >= 2;
	})()`
}

func outlined(selector string) string {
	return `(() => {
		const element = document.querySelector(` + quoted(selector) + `), look = element && getComputedStyle(element);
		return document.activeElement === element && (look.outlineStyle === 'solid' && parseFloat(look.outlineWidth) >= 2 || look.boxShadow !== 'none');
	})()`
}

type step struct{ key, name, then string }

// All of the page is usable by keyboard, with a visible focus.
func TestBrowserKeyboard(t *testing.T) {
	p := open(t, uitest.NewSource(uitest.Cluster(uitest.Size{Nodes: 8, VIPs: 20, Zones: 2, Down: 1, Unserved: 1})))
	p.load("")
	const selected = `location.hash === `
	keys := []step{
		// The browser's driver writes the slash, too, unlike a keyboard.
		{"/", "slash", outlined("#search")},
		{kb.Escape, "Escape takes what is written", outlined("#search") + ` && document.activeElement.value === ''`},
		{kb.Escape, "Escape leaves the field", `document.activeElement === document.body`},
		{"/", "slash", outlined("#search")},
		{kb.Escape, "Escape", outlined("#search") + ` && document.activeElement.value === ''`},
		{kb.ArrowDown, "down", focused("services", "Service team-01/web")},
		{kb.ArrowDown, "down", focused("services", "Service team-01/api")},
		{kb.ArrowUp, "up", focused("services", "Service team-01/web")},
		{kb.ArrowUp, "up at the first row", focused("services", "Service team-01/web")},
		{kb.End, "End", focused("services", "Service team-03/web")},
		{kb.ArrowDown, "down at the last row", focused("services", "Service team-03/web")},
		{kb.Home, "Home", focused("services", "Service team-01/web")},
		{kb.ArrowLeft, "left", focused("nodes", "node node-001")},
		{kb.ArrowLeft, "left", focused("routers", "router tor-a")},
		{kb.ArrowLeft, "left at the first column", focused("routers", "router tor-a")},
		{kb.ArrowDown, "down", focused("routers", "router tor-b")},
		{kb.ArrowRight, "right", focused("nodes", "node node-001")},
		{kb.PageDown, "Page Down", focused("nodes", "node node-008")},
		{kb.PageUp, "Page Up", focused("nodes", "node node-001")},
		{kb.Enter, "Enter", selected + `'#node/node-001' && ` + focused("nodes", "node node-001")},
		{kb.ArrowRight, "right", focused("services", "Service team-01/web") + ` && ` + selected + `'#node/node-001'`},
		{kb.Enter, "Enter", selected + `'#service/team-01/web'`},
		{kb.Escape, "Escape", selected + `'' && ` + focused("services", "Service team-01/web")},
	}
	for at, step := range keys {
		p.run(chromedp.KeyEvent(step.key))
		p.awaits(step, at)
	}
	p.picture("keyboard")
	p.selects("node/node-001", "#panel .facts")
	evaluate[bool](p, `document.querySelector('#panel .back').focus() || true`)
	p.run(chromedp.KeyEvent(kb.Escape))
	p.awaits(step{name: "Escape in the details", then: selected + `'' && ` + focused("nodes", "node node-001")}, 0)
	p.selects("node/node-001", "#panel .link")
	evaluate[bool](p, `document.querySelector('#panel .link').focus({ focusVisible: true }) || true`)
	p.awaits(step{name: "a link", then: outlined("#panel .link")}, 0)
	p.run(chromedp.KeyEvent(kb.Enter))
	p.until(selected + `'#router/tor-b'`)
	p.awaits(step{name: "Enter on a link", then: selected + `'#router/tor-b' && ` + outlined("#panel")}, 0)
	p.run(chromedp.KeyEvent(kb.Tab))
	p.awaits(step{name: "Tab", then: outlined("#panel .back")}, 0)
}

func (p *page) awaits(step step, at int) {
	p.t.Helper()
	p.t.Logf("key %d, %s", at+1, step.name)
	p.until(step.then)
}

func TestBrowserKeyboardGroups(t *testing.T) {
	p := open(t, uitest.NewSource(uitest.Cluster(uitest.Size{Nodes: 70, VIPs: 4, Zones: 1})))
	p.load("")
	rows := `document.querySelectorAll('#nodes .row').length`
	evaluate[bool](p, `document.querySelector('#nodes .list').focus({ focusVisible: true }) || true`)
	for at, step := range []step{
		{kb.ArrowDown, "down", focused("nodes", "healthy, 70 nodes") + ` && ` + rows + ` === 2`},
		{kb.Enter, "Enter opens", rows + ` > 10 && ` + focused("nodes", "healthy, 70 nodes")},
		{kb.ArrowDown, "down", focused("nodes", "node node-001")},
		{kb.ArrowUp, "up", focused("nodes", "healthy")},
		{kb.Enter, "Enter closes", rows + ` === 2`},
	} {
		p.run(chromedp.KeyEvent(step.key))
		p.awaits(step, at)
	}
}
