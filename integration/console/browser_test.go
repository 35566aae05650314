//go:build linux

package console

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/effectively-once/once/integration/internal/proof"
)

// browser is the Chromium of all tests, started by the first of them. Each tab has
// cookies and a cache of its own.
var browser struct {
	start sync.Once
	ctx   context.Context
	end   context.CancelFunc
	err   error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if browser.end != nil {
		browser.end()
	}
	os.Exit(code)
}

// startBrowser starts Chromium with a profile in a new directory.
func startBrowser() {
	profile, err := os.MkdirTemp("", "once-chromium-")
	if err != nil {
		browser.err = err
		return
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.UserDataDir(profile),
		chromedp.Env("TMPDIR="+profile), // where it leaves files
		chromedp.Flag("disable-component-update", true), chromedp.Flag("font-render-hinting", "none"),
		chromedp.Flag("host-resolver-rules", "MAP *.example 127.0.0.1")) // names of other sites
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium does not run as root otherwise
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator)
	browser.end = func() {
		end()
		endAllocator()
		_ = os.RemoveAll(profile)
	}
	browser.ctx, browser.err = ctx, chromedp.Do(ctx)
}

// tab is a page that somebody looks at.
type tab struct {
	t   *testing.T
	ctx context.Context
	at  string // the address of the console, without a slash at its end

	mu      sync.Mutex
	trouble []string // what the page has complained of: nothing at the end of a test
}

// open opens an empty tab for a console. Its person is not signed in.
func open(t *testing.T, at string) *tab {
	t.Helper()
	browser.start.Do(startBrowser)
	proof.Must(t, browser.err)
	b := &tab{t: t, at: at}
	ctx, end := chromedp.NewContext(browser.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.hear))
	t.Cleanup(end)
	b.must(chromedp.Do(ctx)) // which starts it, so that no timeout ends it
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(func() {
		b.calm()
		cancel()
	})
	return b
}

func (b *tab) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%v\nthe page complained of %q", err, b.trouble)
	}
}

// hear notes errors, refused scripts, dialogs, and files that are missing. That a
// page itself has a status such as 403 is not trouble.
func (b *tab) hear(event any) {
	said := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		said = fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.URL, ":", e.ExceptionDetails.LineNumber)
	case *runtime.EventConsoleAPICalled:
		said = fmt.Sprint("console.", e.Type)
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork && (e.Entry.Level == log.EntryLevelWarning || e.Entry.Level == log.EntryLevelError) {
			said = e.Entry.Text
		}
	case *page.EventJavascriptDialogOpening:
		said = "dialog: " + e.Message
	case *network.EventResponseReceived:
		if e.Type != network.ResourceTypeDocument && e.Type != network.ResourceTypeFetch && e.Response.Status >= http.StatusBadRequest {
			said = fmt.Sprint(e.Response.URL, ": ", e.Response.Status)
		}
	}
	if said != "" {
		b.mu.Lock()
		b.trouble = append(b.trouble, said)
		b.mu.Unlock()
	}
}

// calm fails the test if the page has complained.
func (b *tab) calm() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.trouble) > 0 {
		b.t.Errorf("the page complained of %q", b.trouble)
	}
	b.trouble = nil
}

// allow forgets complaints that a test has provoked, and returns them.
func (b *tab) allow() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	said := b.trouble
	b.trouble = nil
	return said
}

// visit opens an address, or a path of the console, and returns its status.
func (b *tab) visit(path string) int {
	b.t.Helper()
	if strings.HasPrefix(path, "/") {
		path = b.at + path
	}
	r, err := chromedp.RunResponse(b.ctx, chromedp.Navigate(path))
	b.must(err)
	return int(r.Status)
}

// follow clicks on what leads to another page, and returns that page's status.
func (b *tab) follow(css string) int {
	b.t.Helper()
	return b.load(chromedp.Click(chromedp.CSS(css)))
}

// load does what leads to another page, and returns that page's status.
func (b *tab) load(what ...chromedp.Action[chromedp.Void]) int {
	b.t.Helper()
	r, err := chromedp.RunResponse(b.ctx, what...)
	b.must(err)
	return int(r.Status)
}

// keys presses keys, wherever the focus is.
func (b *tab) keys(text string) {
	b.t.Helper()
	b.must(chromedp.Do(b.ctx, chromedp.KeyEvent(text)))
}

// slash presses /, as a keyboard does: pages can keep it from being typed.
func (b *tab) slash() {
	b.t.Helper()
	for _, event := range []input.DispatchKeyEventParams{
		{Type: input.DispatchKeyEventTypeKeyDown, Key: "/", Code: "Slash", Text: "/"}, {Type: input.DispatchKeyEventTypeKeyUp, Key: "/", Code: "Slash"}} {
		_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, event)
		b.must(err)
	}
}

func press(key string) chromedp.Action[chromedp.Void] { return chromedp.KeyEvent(key) }

// fill types a text into a field.
func (b *tab) fill(css, text string) {
	b.t.Helper()
	b.must(chromedp.Do(b.ctx, chromedp.Clear(chromedp.CSS(css)), chromedp.SendKeys(chromedp.CSS(css), text)))
}

// click clicks on what does not lead to another page.
func (b *tab) click(css string) {
	b.t.Helper()
	b.must(chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS(css))))
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	b.must(err)
	return v
}

// text returns what can be read on the page.
func (b *tab) text() string {
	b.t.Helper()
	return eval[string](b, "document.body.innerText")
}

// sees fails the test unless all texts can be read on the page. White space does not
// count.
func (b *tab) sees(texts ...string) {
	b.t.Helper()
	all := strings.Join(strings.Fields(b.text()), " ")
	for _, text := range texts {
		if !strings.Contains(all, text) {
			b.t.Fatalf("the page %s does not say %q:\n%s", eval[string](b, "location.href"), text, all)
		}
	}
}

func (b *tab) misses(texts ...string) {
	b.t.Helper()
	all := strings.Join(strings.Fields(b.text()), " ")
	for _, text := range texts {
		if strings.Contains(all, text) {
			b.t.Errorf("the page says %q:\n%s", text, all)
		}
	}
}

// has reports whether something on the page matches.
func (b *tab) has(css string) bool {
	b.t.Helper()
	return eval[bool](b, fmt.Sprintf("document.querySelector(%q) !== null", css))
}

// signIn signs a person in, on whatever page asks for it.
func (b *tab) signIn(token string) {
	b.t.Helper()
	if !b.has("#token") {
		b.visit("/")
	}
	b.fill("#token", token)
	if status := b.follow("main form button"); status != http.StatusOK {
		b.t.Fatalf("the sign-in ends with %d: %s", status, b.text())
	}
}

// look is how a page is looked at.
type look struct {
	width, height int64
	dark          bool
}

func (l look) String() string {
	theme := "light"
	if l.dark {
		theme = "dark"
	}
	return fmt.Sprintf("%d-%s", l.width, theme)
}

var looks = []look{{375, 812, false}, {375, 812, true}, {1280, 800, false}, {1280, 800, true}, {3840, 2160, false}, {3840, 2160, true}}

// looksAt sets the size and the theme.
func (b *tab) looksAt(l look) {
	b.t.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	b.must(err)
	b.must(chromedp.Do(b.ctx, chromedp.EmulateViewport(l.width, l.height)))
}

// withoutScripts switches JavaScript off for the pages that follow.
func (b *tab) withoutScripts() {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.must(err)
}

// fits fails the test if the page is wider than the window.
func (b *tab) fits() {
	b.t.Helper()
	if over := eval[int](b, "document.scrollingElement.scrollWidth - innerWidth"); over > 0 {
		wide := eval[[]string](b, `Array.from(document.querySelectorAll("body *")).filter(function (e) {
			return e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".visually-hidden, .skip, thead") }).slice(0, 5).map(function (e) { return e.outerHTML.slice(0, 160) })`)
		b.t.Errorf("%s is %d pixels wider than the window: %q", eval[string](b, "location.href"), over, wide)
	}
}

// picture keeps a screenshot, if they are wanted.
func (b *tab) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("ONCE_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	b.must(err)
	proof.Must(b.t, os.MkdirAll(dir, 0o755))
	proof.Must(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// finding is what axe-core has found.
type finding struct {
	ID    string   `json:"id"`
	Help  string   `json:"help"`
	Nodes []string `json:"nodes"`
}

// accessible fails the test if axe-core finds something.
func (b *tab) accessible(axe string) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[chromedp.Void](axe)); err != nil {
		b.t.Fatal(err)
	}
	found := eval[[]finding](b, `axe.run(document, {resultTypes: ["violations"]}).then(function (r) { return r.violations.map(function (v) {
		return {id: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map(function (n) { return n.html.slice(0, 200) + " " + (n.any[0] || {message: ""}).message })} }) })`)
	for _, f := range found {
		b.t.Errorf("%s: %s (%s): %q", eval[string](b, "location.href"), f.Help, f.ID, f.Nodes)
	}
}

// in reports whether a text is in the complaints.
func in(said []string, text string) bool {
	return slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, text) })
}
