package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

const limit = 2 * time.Minute

// TestPage goes through all views of a store of 200 checkpoints while a process is restored.
func TestPage(t *testing.T) {
	store := storeDir(t)
	s := fillStore(t, store, 197, 22) // with those that follow, 200 and one that is being written
	sealGPU(t, s, "train-gpu-1", 0)
	sealGPU(t, s, "train-gpu-2", 900)
	must(t, s.Close())

	left := program.WatchLeft(store)
	x := dump(t, store)
	mnt := filepath.Join(t.TempDir(), "mnt")
	must(t, os.Mkdir(mnt, 0o700))
	d, err := program.Serve(store, mnt, "--http", "127.0.0.1:0")
	must(t, err)
	half := filepath.Join(mnt, ".checkpoints", "half")
	must(t, os.Mkdir(half, 0o700))
	t.Cleanup(func() {
		x.Kill()
		must(t, os.RemoveAll(half))
		must(t, d.Stop())
		if err := left.Nothing(); err != nil {
			t.Error(err)
		}
	})
	x.restore(t, "--wait") // which records a profile
	must(t, x.Check(1, limit))
	x.Kill()
	b := open(t, served(t, store))

	t.Run("store", b.storeView(store))
	t.Run("map", b.mapByKeys(store))
	t.Run("list", b.listView(store))
	t.Run("process", b.processView(store))
	t.Run("gpu", b.gpuView)
	t.Run("restore", b.restoreView(x))
	t.Run("messages", b.messagesView(store))
}

// on has a test of a view report to it.
func (b *tab) on(t *testing.T) *tab {
	b.t = t
	return b
}

type usage struct {
	Checkpoints []index.Info
	Logical     int64
	Stored      int64
}

func du(t *testing.T, store string) (u usage) {
	t.Helper()
	must(t, program.JSON(t.Context(), &u, "du", store))
	return u
}

// shown gives a number of bytes as the page shows it.
func shown(b *tab, n int64) string {
	b.t.Helper()
	text := eval[string](b, fmt.Sprintf("import('/dom.js').then((m) => m.size(%d))", n))
	return strings.ReplaceAll(text, "\u00a0", " ")
}

func (b *tab) storeView(store string) func(*testing.T) {
	return func(t *testing.T) {
		b.on(t)
		b.wait(
			"document.querySelectorAll('.tile').length > 50 && document.querySelector('#n-checkpoints').innerText " +
				"&& !/counting/.test(document.querySelector('.figures').innerText)",
		)
		u := du(t, store)
		b.shows(".figures", "200", shown(b, u.Logical), shown(b, u.Stored))
		b.shows(".notices", "1 checkpoint being written")
		b.shows("nav", "Store", "Checkpoints", "201")
		if areas := eval[float64](b, "[...document.querySelectorAll('.tile')].reduce((n, e) => n + e.offsetWidth * "+
			"e.offsetHeight, 0) / (document.querySelector('.map').clientWidth * 440)"); areas < 0.85 ||
			areas > 1.01 {
			t.Errorf("the tiles cover %.2f of the map", areas)
		}
		b.picture("store")
	}
}

// mapByKeys finds out without a mouse what would be free without a checkpoint, and opens it.
func (b *tab) mapByKeys(store string) func(*testing.T) {
	return func(t *testing.T) {
		b.on(t)
		b.do("document.querySelector('.tile[tabindex=\"0\"]').focus()")
		first := eval[string](b, "document.activeElement.dataset.id")
		b.keys(kb.ArrowRight)
		second := eval[string](b, "document.activeElement.dataset.id")
		if first == second || second == "" {
			t.Errorf("from %q the arrow key leads to %q", first, second)
		}
		b.shows(".told", "would be free", "of the store")
		b.keys(kb.Enter)
		b.wait("document.body.dataset.view === 'checkpoint' && document.querySelector('.figures')")
		if hash := eval[string](b, "location.hash"); hash != "#/checkpoint/"+second {
			t.Errorf("it opens %s", hash)
		}
	}
}

// listView finds, sorts and picks by keys; what the page says would be free is what gc then gives back.
func (b *tab) listView(store string) func(*testing.T) {
	return func(t *testing.T) {
		b.on(t)
		b.keys("2")
		b.wait(
			"document.querySelectorAll('.body [role=row]').length > 5 && " +
				"document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '202'",
		)
		b.picture("checkpoints")
		b.keys("/")
		b.wait("document.activeElement.type === 'search'")
		b.keys("train-llama-1 node-")
		b.wait("document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '11'")
		b.keys(kb.Enter)
		b.keys(" " + kb.ArrowDown + " ")
		b.wait(
			"/would be free/.test(document.querySelector('.picked')?.innerText) && " +
				"document.querySelector('.picked code')",
		)
		b.picture("picked")
		command := b.text(".picked code")
		said := b.text(".picked p b")
		if !strings.HasPrefix(command, "gpucr-fs rm "+store+" train-llama-1") ||
			!strings.Contains(command, "&& gpucr-fs gc "+store) {
			t.Errorf("the command is %q", command)
		}
		names := strings.Fields(strings.TrimPrefix(strings.Split(command, " &&")[0], "gpucr-fs rm "+store))
		before := du(t, store).Stored
		if _, err := program.RunIn(limit, append([]string{"rm", "-y", store}, names...)...); err != nil {
			t.Fatal(err)
		}
		if gone := shown(b, before-du(t, store).Stored); gone != said {
			t.Errorf("%s were said to be free, %s are", said, gone)
		}
		// What was removed goes from the list by itself.
		b.wait("document.querySelector('[role=grid]').getAttribute('aria-rowcount') === '9'")
	}
}

func (b *tab) processView(store string) func(*testing.T) {
	return func(t *testing.T) {
		b.on(t)
		b.view("checkpoint/process")
		b.wait("document.querySelector('.strip')")
		b.shows(
			"main", "lazytarget", "Free without it", "is what the last recorded restore touched first",
			"Restores bring it first", "pages-1.img", "gpucr-fs restore "+store+" process",
		)
		if hot := eval[float64](b,
			"fetch('/api/memory/process').then((r) => r.json()).then((m) => m.processes[0].hot)"); hot == 0 {
			t.Error("no page of the process is hot")
		}
		painted := eval[bool](
			b,
			`(() => {
				const c = document.querySelector('.strip canvas');
				const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
				const seen = new Set();
				for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 4).join());
				return seen.size >= 3;
			})()`,
		)
		if !painted {
			t.Error("the hot set is not painted")
		}
		b.picture("process")
	}
}

func (b *tab) gpuView(t *testing.T) {
	b.on(t)
	b.view("checkpoint/train-gpu-2")
	b.wait("[...document.querySelectorAll('h2')].some((e) => e.textContent === 'GPUs')")
	b.shows("main", "Buffer objects", "render node", "train-gpu-1", "VRAM")
	b.picture("gpu")
}

// restoreView watches a restore from its beginning to its end.
func (b *tab) restoreView(x *target) func(*testing.T) {
	return func(t *testing.T) {
		b.on(t)
		b.view("restores")
		var restoring sync.WaitGroup
		restoring.Go(func() { x.restore(t, "--wait", "--prefetch-rate", "3MiB") })
		b.wait(
			"document.querySelector('.tag')?.innerText === 'in progress' && /processes " +
				"run/.test(document.querySelector('.course')?.textContent)",
		)
		there := "Number(document.querySelector('[role=progressbar]').getAttribute('aria-valuenow'))"
		before := eval[float64](b, there)
		b.wait(fmt.Sprintf("%s > %v", there, min(before+15, 99)))
		b.shows("#n-restores", "1")
		b.shows(
			".run", "process", "The processes run; their memory follows", "Bandwidth", "Faults", "hot set",
			"on demand",
		)
		b.picture("restores")
		restoring.Wait()
		b.wait("/All memory was there after/.test(document.querySelector('main').innerText)")
		if n := eval[float64](b, "document.querySelector('.course polyline').points.numberOfItems"); n < 10 {
			t.Errorf("the timeline has %v points", n)
		}
		must(t, x.Check(1, limit))
		b.picture("restores-over")
	}
}

func (b *tab) messagesView(store string) func(*testing.T) {
	return func(t *testing.T) {
		b.on(t)
		if _, err := program.RunIn(limit, "info", store, "nobody"); cli.Code(err) != cli.Failed {
			t.Errorf("info of what is not there: %v", err)
		}
		b.wait("document.querySelector('#n-messages').textContent !== ''")
		b.keys("4")
		b.wait("document.querySelector('.log p')")
		b.shows(".log", "warning", "operation failed", "nobody")
		b.picture("messages")
		b.wait("document.querySelector('#n-messages').textContent === ''")
	}
}

// target is a process that was dumped into the store as "process".
type target struct {
	*lazytarget.Target
	store string
	pid   int
}

func dump(t *testing.T, store string) *target {
	t.Helper()
	x, err := lazytarget.Start(targetBin, t.TempDir(), lazytarget.Options{MB: 32, Threads: 1, Seed: 1, Quiet: true})
	must(t, err)
	t.Cleanup(func() { x.Close() })
	_, err = program.RunIn(limit, "dump", store, "process", "-t", strconv.Itoa(x.PID))
	must(t, err)
	must(t, x.Dumped())
	return &target{x, store, x.PID}
}

func (x *target) restore(t *testing.T, args ...string) {
	t.Helper()
	x.Reset()
	stop := make(chan struct{})
	var reaping sync.WaitGroup
	reaping.Go(func() { x.Reap(stop) })
	_, err := program.RunIn(limit, append([]string{"restore", x.store, "process"}, args...)...)
	close(stop)
	reaping.Wait()
	x.Restored(x.pid)
	if err != nil {
		t.Error(err)
	}
}
