package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestManyCheckpoints opens the page of a large store and goes to the end of its list.
func TestManyCheckpoints(t *testing.T) {
	store := storeDir(t)
	must(t, fillStore(t, store, *manyFlag, 2).Close())
	at := serve(t, store)
	b := open(t, "about:blank")
	b.at = at
	begin := time.Now()
	b.run(chromedp.Navigate(at + "#/checkpoints"))
	b.wait(
		fmt.Sprintf(
			"document.querySelector('[role=grid]')?.getAttribute('aria-rowcount') === '%d' && "+
				"document.querySelectorAll('.body a').length > 5",
			*manyFlag+1,
		),
	)
	listed := time.Since(begin)
	b.wait("document.querySelectorAll('.body .split').length > 5")
	counted := time.Since(begin)
	nodes := eval[float64](b, "document.querySelectorAll('*').length")
	if nodes > 3000 {
		t.Errorf("the page of %d checkpoints has %v elements", *manyFlag, nodes)
	}
	b.do("document.querySelector('.body').focus()")
	b.keys(kb.End)
	b.wait(
		fmt.Sprintf(
			"document.querySelector('.body .at')?.getAttribute('aria-rowindex') === '%d' && "+
				"document.querySelector('.body .at a')",
			*manyFlag+1,
		),
	)
	begin = time.Now()
	b.view("store")
	b.wait("document.querySelectorAll('.tile').length > 50")
	t.Logf(
		"%d checkpoints: listed after %v, counted after %v, map drawn after %v", *manyFlag, listed, counted,
		time.Since(begin),
	)
	b.shows(".figures", fmt.Sprintf("%d,%03d", *manyFlag/1000, *manyFlag%1000))
	b.picture("large")
}

// serve runs gpucr-fs serve and gives the address of the page.
func serve(t *testing.T, store string, flags ...string) string {
	t.Helper()
	p := program.Command(append([]string{"serve", "--http", "127.0.0.1:0", store}, flags...)...)
	must(t, p.Start())
	t.Cleanup(func() {
		must(t, p.Process.Signal(syscall.SIGTERM))
		must(t, p.Wait())
	})
	return served(t, store)
}

// TestOfferedCommands: no name of a checkpoint becomes an option of a command that the page offers for copying.
func TestOfferedCommands(t *testing.T) {
	store := storeDir(t)
	must(t, fillStore(t, store, 3, 2).Close())
	b := open(t, serve(t, store))
	for call, want := range map[string]string{
		"removal('/a b', ['x', '--keep-last=1'])":        "gpucr-fs rm '/a b' -- x --keep-last=1",
		"removal('/s', ['x', 'y~1'])":                    "gpucr-fs rm /s x 'y~1'",
		"reference({name: '--all', id: '0123456789ab'})": "0123456789ab",
		"reference({name: 'a~b', id: '0123456789ab'})":   "'a~b'",
	} {
		if got := eval[string](b, "import('/dom.js').then((m) => m."+call+")"); got != want {
			t.Errorf("%s: %s, want %s", call, got, want)
		}
	}
}

// TestToken has a person type in the token.
func TestToken(t *testing.T) {
	store := storeDir(t)
	must(t, fillStore(t, store, 3, 2).Close())
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("correct-horse-battery\n"), 0o600))
	b := open(t, serve(t, store, "--token-file", token))
	b.shows("main", "Token", "--token-file")
	b.picture("token")
	b.keys("correct-horse-battery" + kb.Enter)
	b.wait("document.querySelector('.tile')")
	b.shows(".figures", "Checkpoints", "3")
}

// TestTokenLater: a page that is open to everybody asks for the token once a second command has named one.
func TestTokenLater(t *testing.T) {
	store := storeDir(t)
	must(t, fillStore(t, store, 3, 2).Close())
	at := serve(t, store)
	b := open(t, at)
	b.wait("document.querySelector('.tile')")
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("another-horse-battery\n"), 0o600))
	mnt := t.TempDir()
	_, err := program.RunIn(limit, "mount", "--http", strings.Trim(strings.TrimPrefix(at, "http:"), "/"),
		"--token-file", token, store, mnt)
	must(t, err)
	t.Cleanup(func() {
		_, err := program.RunIn(limit, "umount", mnt)
		must(t, err)
	})
	b.run(chromedp.Navigate("about:blank"), chromedp.Navigate(at))
	b.shows("main", "Token", "--token-file")
	b.keys("another-horse-battery" + kb.Enter)
	b.wait("document.querySelector('.tile')")
}
