package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
)

const (
	// A fill imports each buffer object and maps it to its GPU.
	requestsOfObject = 2
	// Threads that import beside each other in a fill.
	importers = 4
	// requesting begins the arguments of a benchgpu that issues requests and does nothing else.
	requesting = "requests"
)

// requests is how many seconds n requests take for which the simulator has nothing to do, but they are answered by
// another process, where a driver answers in the caller. They are issued as a fill issues its own: by a process beside
// the simulator's, several at once.
func (m *machine) requests(n int) float64 {
	if n == 0 {
		return 0
	}
	self, err := os.Executable()
	m.must(err)
	node := filepath.Join(m.Sim.DevDir(), "dri", fmt.Sprintf("renderD%d", m.Sim.Options().GPUs[0].RenderMinor))
	out, err := exec.CommandContext(m.ctx, self, requesting, strconv.Itoa(n), node).Output()
	m.must(err)
	v, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	m.must(err)
	return v
}

// request issues requests to a render node and prints how many seconds they took.
func request(count, node string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	d, err := drm.Open(f, drm.Options{Kind: drm.SDMA})
	if err != nil {
		return err
	}
	defer d.Close()
	var wg sync.WaitGroup
	errs := make([]error, importers)
	began := time.Now()
	for i := range importers {
		wg.Go(func() {
			for range n / importers {
				if err := d.Err(); err != nil { // a request: is the context well?
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	_, err = fmt.Println(took)
	return err
}
