package lazy

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// BenchmarkRestore restores a quiet process of 1 GB from the page cache, eagerly
// and lazily, and tells after how long it runs and after how long all its
// memory is there.
func BenchmarkRestore(b *testing.B) {
	c := dump(b, lazytarget.Options{MB: 1024, Threads: 1, Seed: 10, Quiet: true})
	run := func(name string, one func(b *testing.B, work string) (resume, resident time.Duration)) {
		b.Run(name, func(b *testing.B) {
			var resume, resident time.Duration
			for range b.N {
				c.Reset()
				a, z := one(b, b.TempDir())
				resume, resident = resume+a, resident+z
				b.StopTimer()
				must(b, c.Check(1, time.Minute))
				c.Kill()
				b.StartTimer()
			}
			b.ReportMetric(resume.Seconds()*1e3/float64(b.N), "ms-resume")
			b.ReportMetric(resident.Seconds()*1e3/float64(b.N), "ms-resident")
			b.ReportMetric(0, "ns/op")
		})
	}
	run("criu", func(b *testing.B, work string) (resume, resident time.Duration) {
		start := time.Now()
		must(b, criu(b, "restore", "-W", work, "-D", c.dir, "-d"))
		c.Restored(c.pid)
		return time.Since(start), time.Since(start)
	})
	run("criu-lazy-pages", func(b *testing.B, work string) (resume, resident time.Duration) {
		cmd := exec.Command(criuProgram(b), "lazy-pages", "-W", work, "-D", c.dir)
		must(b, cmd.Start())
		must(b, poll(time.Minute, func() bool {
			m, _ := filepath.Glob(filepath.Join(work, uffd.SocketName))
			return len(m) == 1
		}))
		start := time.Now()
		must(b, c.restore(b, work))
		resume = time.Since(start)
		must(b, cmd.Wait())
		return resume, time.Since(start)
	})
	run("in-process", func(b *testing.B, work string) (resume, resident time.Duration) {
		s := c.serve(b, work, serveOptions{})
		start := time.Now()
		must(b, c.restore(b, work))
		resume = time.Since(start)
		must(b, s.wait(time.Minute))
		return resume, time.Since(start)
	})
	run("guarded", func(b *testing.B, work string) (resume, resident time.Duration) {
		g := c.guard(b, work, 0)
		start := time.Now()
		must(b, c.restore(b, work))
		resume = time.Since(start)
		must(b, <-g.end)
		return resume, time.Since(start)
	})
}
