package cuda_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

// TestHugePages: the memory into which the driver copies VRAM is made of huge pages where the kernel gives them to who
// asks. The driver does not, and wants it filled at once with small ones.
func TestHugePages(t *testing.T) {
	const mib = 256
	how, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		t.Fatal(err)
	}
	a := target(t, cudasim.Options{MiB: mib, Processes: 2})
	c := client(t)
	before := ask(t, a, 0)
	for range 3 {
		s, err := c.Suspend(ctx(t), a.PID, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range s.Processes() {
			wished, huge := largest(t, p.PID)
			if wished != strings.Contains(string(how), "[madvise]") {
				t.Errorf("huge pages are set to %s, and asked for: %v", strings.TrimSpace(string(how)), wished)
			}
			if wished && huge < mib/2 {
				t.Errorf("%d of %d MiB are in huge pages", huge, mib)
			}
		}
		if err := s.Undo(); err != nil {
			t.Fatal(err)
		}
	}
	if after := ask(t, a, 0); after != before {
		t.Errorf("the application answers %s, and %s before", after, before)
	}
}

// largest tells of a process's largest mapping whether huge pages are asked for, and how many MiB are in some.
func largest(t *testing.T, pid int) (wished bool, huge int) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, most, pages := 0, 0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch name {
		case "Size":
			fmt.Sscan(value, &size)
		case "AnonHugePages":
			fmt.Sscan(value, &pages)
		case "VmFlags":
			if size > most {
				most, huge, wished = size, pages>>10, strings.Contains(value+" ", " hg ")
			}
		}
	}
	return wished, huge
}

// TestGivenBackLater: a process does not wait until the memory that its VRAM was saved in is given back to the kernel.
// A thread made for that does it, and ends.
func TestGivenBackLater(t *testing.T) {
	const mib = 1024
	a := target(t, cudasim.Options{MiB: mib})
	c := client(t)
	before := ask(t, a, 0)
	for range 3 {
		if _, err := c.Suspend(ctx(t), a.PID, time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wake(ctx(t), a.PID); err != nil {
			t.Fatal(err)
		}
		_, err := c.Resume(ctx(t), a.PID, nil)
		if err != nil {
			t.Error(err)
		}
		if after := ask(t, a, 0); after != before {
			t.Errorf("the application answers %s, and %s before", after, before)
		}
		if !releases(t, a.PID) {
			t.Error("no thread gave memory back")
		}
		for end := time.Now().Add(timeout); slices.Contains(threadNames(a.PID), "gpucr-release"); {
			if time.Now().After(end) {
				t.Fatal("the thread does not end")
			}
			time.Sleep(time.Millisecond)
		}
		if left := resident(t, a.PID); left > mib/2 {
			t.Errorf("the process still has %d MiB", left)
		}
	}
}

// releases says whether a process's code has that of a thread which gives memory back, behind the end of a segment.
func releases(t *testing.T, pid int) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	page := make([]byte, 4096)
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if n, _ := fmt.Sscanf(line, "%x-%x r-xp", &from, &to); n < 2 {
			continue
		}
		if _, err := mem.ReadAt(page, to-int64(len(page))); err != nil {
			continue
		}
		if bytes.Contains(page, []byte("gpucr-release\x00")) {
			return true
		}
	}
	return false
}

// threadNames gives the names of a process's threads.
func threadNames(pid int) (names []string) {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		names = append(names, strings.TrimSpace(string(text)))
	}
	return names
}

// resident tells how much memory a process has, in MiB.
func resident(t *testing.T, pid int) (mib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nRssAnon:")
	fmt.Sscan(rest, &mib)
	return mib >> 10
}
