package page

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

var (
	manyFlag = flag.Int("page.many", 1000, "how many checkpoints the large store has")

	program     cli.Program
	targetBin   string
	screenshots string
	chromium    context.Context // its browser; each test has a tab
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "page-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		program, err = cli.Build(dir)
	}
	if err == nil {
		targetBin, err = lazytarget.Build(dir)
	}
	var criu string
	if err == nil {
		criu, err = cli.FindCRIU()
	}
	if err == nil {
		_, err = exec.LookPath("chromium")
		if err != nil {
			err = fmt.Errorf("%w (make deps installs it)", err)
		}
	}
	if err == nil {
		screenshots, err = filepath.Abs("../../../build/screenshots")
		err = errors.Join(err, os.MkdirAll(screenshots, 0o755))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("GPUCR_FS_CRIU", criu)
	os.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	os.Setenv("TMPDIR", dir)
	o := append(
		slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath("chromium"), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.WSURLReadTimeout(time.Minute),
	)
	alloc, endAlloc := chromedp.NewExecAllocator(context.Background(), o...)
	defer endAlloc()
	browser, end := chromedp.NewContext(alloc)
	defer end()
	if err := chromedp.Do(browser); err != nil {
		fmt.Fprintln(os.Stderr, "start chromium:", err)
		return 1
	}
	chromium = browser
	return m.Run()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tab is a tab of the browser that watches what the page does: what it asks others for, and what it complains of.
type tab struct {
	t   testing.TB
	ctx context.Context
	at  string // the page

	mu       sync.Mutex
	problems []string
}

func open(t testing.TB, at string) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(chromium)
	t.Cleanup(end)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, at: at}
	must(t, chromedp.Do(ctx))
	must(t, chromedp.Listen(ctx, b.listen))
	b.run(
		call(network.Enable, network.EnableParams{}), call(log.Enable, cdp.Empty{}),
		call(runtime.Enable, cdp.Empty{}), chromedp.EmulateViewport(1280, 860), chromedp.Navigate(at),
	)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range b.problems {
			t.Error(p)
		}
	})
	return b
}

func (b *tab) listen(ev any) {
	found := ""
	switch e := ev.(type) {
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || !strings.HasPrefix(b.at, u.Scheme+"://"+u.Host) {
			found = "the page asks somebody else: " + e.Request.URL
		}
	case *runtime.EventExceptionThrown:
		found = "exception: " + fmt.Sprint(*e.ExceptionDetails)
	case *log.EventEntryAdded:
		// Among them are violations of the Content-Security-Policy.
		if e.Entry.Level == log.EntryLevelError && !strings.Contains(e.Entry.Text, "status of 401") {
			found = "console: " + e.Entry.Text + " " + e.Entry.URL
		}
	}
	if found != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.problems = append(b.problems, found)
	}
}

func (b *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	must(b.t, chromedp.Do(b.ctx, steps...))
}

// call is a command of the browser's protocol.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// do runs statements in the page.
func (b *tab) do(statements string) {
	b.t.Helper()
	b.run(chromedp.Evaluate[chromedp.Void](statements))
}

// eval gives the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	must(b.t, err)
	return v
}

// wait waits until an expression is true.
func (b *tab) wait(expression string) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if ok {
			return
		}
		if time.Now().After(end) || b.ctx.Err() != nil {
			b.t.Fatalf("the page never came to %s (%v); it shows\n%s", expression, err, b.text("main"))
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// text is what people read in an element.
func (b *tab) text(selector string) string {
	b.t.Helper()
	s := eval[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
	return strings.ReplaceAll(s, "\u00a0", " ")
}

// shows fails unless an element shows all of some words.
func (b *tab) shows(selector string, words ...string) {
	b.t.Helper()
	text := b.text(selector)
	for _, w := range words {
		if !strings.Contains(text, w) {
			b.t.Errorf("%s lacks %q:\n%s", selector, w, text)
		}
	}
}

// keys types as a person does.
func (b *tab) keys(keys string) {
	b.t.Helper()
	b.run(chromedp.KeyEvent(keys))
}

// view goes to a view.
func (b *tab) view(name string) {
	b.t.Helper()
	b.do(fmt.Sprintf("location.hash = %q", "#/"+name))
	b.wait(fmt.Sprintf("document.body.dataset.view === %q", strings.SplitN(name, "/", 2)[0]))
}

// picture keeps what the view looks like: by day and by night, on a desk and on a telephone.
func (b *tab) picture(name string) {
	b.t.Helper()
	for _, shape := range []struct {
		name       string
		wide, high int64
	}{{"wide", 1280, 860}, {"narrow", 390, 844}} {
		for _, scheme := range []string{"light", "dark"} {
			night := emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			}
			b.run(
				call(emulation.SetEmulatedMedia, night),
				chromedp.EmulateViewport(shape.wide, shape.high),
				chromedp.Sleep(60*time.Millisecond),
			)
			png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
			must(b.t, err)
			must(
				b.t,
				os.WriteFile(
					filepath.Join(screenshots, fmt.Sprintf("%s-%s-%s.png", name, shape.name, scheme)), png, 0o644,
				),
			)
			if over := eval[float64](b,
				"document.documentElement.scrollWidth - document.documentElement.clientWidth"); over > 0 {
				b.t.Errorf("%s, %s: the page is %v px wider than the window", name, shape.name, over)
			}
		}
	}
	b.run(chromedp.EmulateViewport(1280, 860))
}

// served gives the address of a store's page.
func served(t testing.TB, store string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var st struct{ Page string }
		err := program.JSON(t.Context(), &st, "stats", store)
		if err == nil && st.Page != "" {
			return "http://" + st.Page + "/"
		}
		if time.Now().After(end) {
			t.Fatalf("no page is served: %v", err)
		}
	}
}
