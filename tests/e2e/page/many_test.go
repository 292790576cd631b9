package page

import (
	"fmt"
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
	p := program.Command("serve", "--http", "127.0.0.1:0", store)
	must(t, p.Start())
	t.Cleanup(func() {
		p.Process.Signal(syscall.SIGTERM)
		p.Wait()
	})
	at := served(t, store)
	b := open(t, "about:blank")
	b.at = at
	begin := time.Now()
	b.run(chromedp.Navigate(at + "#/checkpoints"))
	b.wait(fmt.Sprintf("document.querySelector('[role=grid]')?.getAttribute('aria-rowcount') === '%d' && document.querySelectorAll('.body a').length > 5", *manyFlag+1))
	listed := time.Since(begin)
	b.wait("document.querySelectorAll('.body .split').length > 5")
	counted := time.Since(begin)
	nodes := eval[float64](b, "document.querySelectorAll('*').length")
	if nodes > 3000 {
		t.Errorf("the page of %d checkpoints has %v elements", *manyFlag, nodes)
	}
	b.do("document.querySelector('.body').focus()")
	b.keys(kb.End)
	b.wait(fmt.Sprintf("document.querySelector('.body .at')?.getAttribute('aria-rowindex') === '%d' && document.querySelector('.body .at a')", *manyFlag+1))
	begin = time.Now()
	b.view("store")
	b.wait("document.querySelectorAll('.tile').length === 241")
	t.Logf("%d checkpoints: listed after %v, counted after %v, map drawn after %v", *manyFlag, listed, counted, time.Since(begin))
	b.shows(".figures", fmt.Sprintf("%d,%03d", *manyFlag/1000, *manyFlag%1000))
	b.picture("large")
}
