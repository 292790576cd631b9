// Command manychunks makes a bucket with a great many chunks and measures what a node that shares it takes: time,
// requests and memory to list it, to restore the first page of a checkpoint, to learn of all of it, and to collect.
//
// Lists and roots are those that a node would write. Packs have their lengths and content that is made when it is read:
// 10,000,000 chunks of 256 KiB are 2.5 TB. The bucket is in memory, each task in a process of its own that reaches the
// bucket by a socket, so what a task takes is its own.
//
//	go run ./tests/manychunks -checkpoints 1000 -chunks 10000
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Measured is what a task took.
type Measured struct {
	Task     string        `json:"task"`
	Time     time.Duration `json:"time"`
	Requests int64         `json:"requests"`
	Peak     int64         `json:"peak"`   // bytes of memory of its own, at most: RssAnon, looked at every 20 ms
	Mapped   int64         `json:"mapped"` // bytes, at most, with pages of files that are mapped, the index's: VmHWM
	Text     string        `json:"text"`   // what it found
}

// tasks are what is measured, in this order.
var tasks = []string{"list", "first", "learn", "gc"}

func main() {
	checkpoints := flag.Int("checkpoints", 20, "checkpoints in the bucket")
	chunks := flag.Int("chunks", 2000, "chunks of each")
	task := flag.String("task", "", "internal: the task of a child")
	flag.Parse()
	var err error
	if *task != "" {
		err = child(*task, flag.Arg(0))
	} else {
		err = parent(context.Background(), *checkpoints, *chunks)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "manychunks:", err)
		os.Exit(1)
	}
}

func parent(ctx context.Context, checkpoints, chunks int) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	begin := time.Now()
	all, err := measure(ctx, exe, checkpoints, chunks, func() {
		took := time.Since(begin).Round(time.Millisecond)
		fmt.Printf("%d checkpoints of %d chunks, made in %v\n", checkpoints, chunks, took)
	})
	for _, m := range all {
		fmt.Printf("%-6s %10v %8d requests %6d MiB, %d with mapped files  %s\n", m.Task, m.Time.Round(time.Millisecond),
			m.Requests, m.Peak>>20, m.Mapped>>20, m.Text)
	}
	return err
}

// measure makes a bucket and gives what each task took, run by the program exe.
func measure(ctx context.Context, exe string, checkpoints, chunks int, made func()) (all []Measured, err error) {
	h, err := generate(ctx, checkpoints, chunks)
	if err != nil {
		return nil, err
	}
	made()
	dir, err := os.MkdirTemp("", "manychunks-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "bucket.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	server := rpc.NewServer()
	if err := server.Register(&Server{h}); err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(c)
		}
	}()
	for _, task := range tasks {
		cmd := exec.CommandContext(ctx, exe, "-task", task, socket)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return all, fmt.Errorf("%s: %w", task, err)
		}
		var m Measured
		if err := json.Unmarshal(out, &m); err != nil {
			return all, fmt.Errorf("%s: %w: %.200q", task, err, out)
		}
		all = append(all, m)
	}
	return all, nil
}

// child does one task on the bucket behind a socket, and prints what it took.
func child(task, socket string) error {
	conn, err := rpc.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	own := watchOwn()
	var meter bucket.Meter
	ctx := context.Background()
	begin := time.Now()
	s, err := remote.Open(ctx, meter.Over(distant{conn}), remote.Options{})
	if err != nil {
		return err
	}
	m := Measured{Task: task}
	switch task {
	case "list":
		var list []remote.Entry
		list, err = s.List(ctx)
		m.Text = fmt.Sprintf("%d checkpoints", len(list))
	case "first", "learn":
		m.Text, err = onNode(ctx, s, task, &begin)
	case "gc":
		err = s.Remove(ctx, nameOf(0))
		for range 2 {
			var res catalog.Report
			if err == nil {
				res, err = s.Collector(catalog.Patience{}).Collect(ctx)
			}
			m.Text += fmt.Sprintf("%d packs removed; ", res.Packs)
		}
	}
	if err != nil {
		return err
	}
	m.Time = time.Since(begin)
	for _, c := range meter.Counts() {
		m.Requests += c.Requests
	}
	m.Peak = own()
	if m.Mapped, err = fromStatus("VmHWM"); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

// onNode does a task that needs an empty node. The time begins when that is there.
func onNode(ctx context.Context, s *remote.Store, task string, begin *time.Time) (string, error) {
	dir, err := os.MkdirTemp("", "manychunks-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	store := filepath.Join(dir, "store")
	if err := index.Init(store, index.InitOptions{}); err != nil {
		return "", err
	}
	cache, err := nodecache.Open(nodecache.Options{Dir: filepath.Join(store, "cache"), Limit: 1 << 30,
		Storage: storage.Disk{}, Source: s, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	n, err := index.Open(ctx, store, index.Options{Distant: cache, FreeFloor: 1})
	if err != nil {
		return "", err
	}
	defer n.Close()
	*begin = time.Now()
	if task == "learn" {
		return "", s.Learn(ctx, n)
	}
	if _, err := s.Pull(ctx, n, nameOf(0), nameOf(0)); err != nil {
		return "", err
	}
	c, err := n.Checkpoint(nameOf(0))
	if err != nil {
		return "", err
	}
	f, err := c.Open(fileName)
	if err != nil {
		return "", err
	}
	defer f.Close()
	page := make([]byte, 4096)
	if _, err := f.ReadAt(page, 0); err != nil {
		return "", err
	}
	if string(page) != string(content(0, 0)[:len(page)]) {
		return "", fmt.Errorf("the first page has other bytes")
	}
	return "the first page is right", nil
}

// watchOwn watches the memory of this process that no file backs; what it gives ends that, and tells the most of it.
func watchOwn() (end func() int64) {
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		var peak int64
		for t := time.NewTicker(20 * time.Millisecond); ; {
			now, _ := fromStatus("RssAnon")
			peak = max(peak, now)
			select {
			case <-t.C:
			case <-stop:
				t.Stop()
				most <- peak
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-most
	}
}

// fromStatus gives a size that the kernel tells of this process, in bytes.
func fromStatus(field string) (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(field + `:\s*(\d+) kB`).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("the kernel does not tell %s", field)
	}
	kb, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kb << 10, err
}
