package posix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"google.golang.org/protobuf/proto"
)

const (
	pageSize  = 4096
	peParent  = 1 // PE_PARENT of pagemap entries: the page is in the parent
	pePresent = 4
)

// makeIncremental writes into child what an incremental dump of process pid would hold next to the full dump in full,
// if half of each run of pages had not changed: those pages are marked PARENT and left out. It gives the bytes left
// out.
func makeIncremental(t *testing.T, full, child string, pid int) (saved int) {
	t.Helper()
	pm := fmt.Sprintf("pagemap-%d.img", pid)
	b, err := os.ReadFile(filepath.Join(full, pm))
	must(t, err)
	out := append([]byte{}, b[:8]...)
	record := func(m proto.Message) {
		enc, err := proto.Marshal(m)
		must(t, err)
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(enc))), enc...)
	}
	next := func(m proto.Message) {
		n := binary.LittleEndian.Uint32(b)
		must(t, proto.Unmarshal(b[4:4+n], m))
		b = b[4+n:]
	}
	b = b[8:]
	var head pagemap.PagemapHead
	next(&head)
	record(&head)
	pagesName := fmt.Sprintf("pages-%d.img", head.GetPagesId())
	pages, err := os.ReadFile(filepath.Join(full, pagesName))
	must(t, err)
	var kept bytes.Buffer
	for len(b) > 0 {
		var e pagemap.PagemapEntry
		next(&e)
		n := e.GetNrPages()
		if e.GetFlags()&pePresent == 0 || n < 2 {
			if e.GetFlags()&pePresent != 0 {
				kept.Write(pages[:n*pageSize])
				pages = pages[n*pageSize:]
			}
			record(&e)
			continue
		}
		half := n / 2
		first := proto.Clone(&e).(*pagemap.PagemapEntry)
		first.NrPages = proto.Uint64(half)
		record(first)
		kept.Write(pages[:half*pageSize])
		rest := proto.Clone(&e).(*pagemap.PagemapEntry)
		rest.Vaddr = proto.Uint64(e.GetVaddr() + half*pageSize)
		rest.NrPages, rest.Flags, rest.InParent = proto.Uint64(n-half), proto.Uint32(peParent), proto.Bool(true)
		record(rest)
		pages = pages[n*pageSize:]
		saved += int(n-half) * pageSize
	}
	if len(pages) > 0 {
		t.Fatalf("%s has %d bytes that no entry of %s tells of", pagesName, len(pages), pm)
	}
	l, err := os.ReadDir(full)
	must(t, err)
	for _, e := range l {
		data, err := os.ReadFile(filepath.Join(full, e.Name()))
		must(t, err)
		switch e.Name() {
		case pm:
			data = out
		case pagesName:
			data = kept.Bytes()
		}
		must(t, os.WriteFile(filepath.Join(child, e.Name()), data, 0o644))
	}
	return saved
}

// A restore reads what did not change from the parent, through the parent link, and punches no holes there or here.
func TestCRIURestoresIncrementalDump(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	p := startWorkload(t, 64)
	full, child := m.draft("full"), m.draft("child")
	runCRIU(t, filepath.Join(full, "dump.log"), "dump", "-t", strconv.Itoa(p.PID), "-D", full, "-o", "dump.log", "-v4")
	must(t, p.Gone(time.Minute))
	must(t, os.Symlink("../full", filepath.Join(child, "parent")))
	if saved := makeIncremental(t, full, child, p.PID); saved < 16<<20 {
		t.Fatalf("only %d bytes are left to the parent", saved)
	}
	m.seal("child")
	m.stop()
	m = start(t, serveArgs{Store: m.store})
	for _, dir := range []string{m.dir, filepath.Join(m.dir, ".checkpoints", "child")} {
		runCRIU(t, filepath.Join(dir, "restore.log"), "restore", "-D", dir, "-d", "-o", "restore.log", "-v4")
		must(t, p.Verified(time.Minute))
		must(t, p.Kill())
	}
	if out, err := tryCRIU(t, "restore", "-D", m.dir, "-d", "-o", "restore.log", "-v4", "--auto-dedup"); err == nil {
		t.Errorf("a restore that punches holes succeeded: %s", out)
		must(t, p.Kill())
	}
	log, err := os.ReadFile(filepath.Join(m.dir, "restore.log"))
	must(t, err)
	if !bytes.Contains(log, []byte("Read-only file system")) {
		t.Error("the log of the refused restore does not tell of a read-only file system")
	}
	must(t, p.Gone(time.Minute))
}

// criu makes the parent link itself and dumps against it. A kernel that does not track changed pages lets it dump
// against a parent without this process only, which is enough for the link.
func TestCRIUDumpLinksItsParent(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	m.sealed("base", map[string][]byte{"inventory.img": {1}})
	p := startWorkload(t, 16)
	dir := m.draft("next")
	args := []string{"dump", "-t", strconv.Itoa(p.PID), "-D", dir, "-o", "dump.log", "-v4", "--prev-images-dir"}
	if out, err := tryCRIU(t, append(args, t.TempDir())...); err == nil {
		t.Errorf("a dump against a parent outside of the store succeeded: %s", out)
	}
	must(t, p.Verified(time.Minute))
	runCRIU(t, filepath.Join(dir, "dump.log"), append(args, "../base")...)
	must(t, p.Gone(time.Minute))
	if got, err := os.Readlink(filepath.Join(dir, "parent")); got != "../base" || err != nil {
		t.Errorf("the parent link reads %q, %v", got, err)
	}
	runCRIU(t, filepath.Join(dir, "restore.log"), "restore", "-D", dir, "-d", "-o", "restore.log", "-v4")
	must(t, p.Verified(time.Minute))
}
