package fill

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	plugin "github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// make does what the restore server does with an announced fill, and gives the answer.
func (r *fillRig) make(t *testing.T, conn *os.File, packets []Packet) *plugin.Message {
	t.Helper()
	for _, p := range packets {
		fds := make([]int, len(p.BOs))
		for i, n := range p.BOs {
			fds[i] = int(r.plan.BOs[n].Dmabuf.Fd())
		}
		if err := unix.Sendmsg(int(conn.Fd()), p.Bytes, unix.UnixRights(fds...), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	c, err := plugin.NewConn(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		m, files, err := c.Receive()
		if err != nil || len(files) > 0 {
			t.Fatalf("%d descriptors, %v", len(files), err)
		}
		if m.Type != plugin.Working {
			return m
		}
		if m.Size > m.PrivSize {
			t.Errorf("%d of %d bytes have moved", m.Size, m.PrivSize)
		}
	}
}

// The restore server fills what the helper has announced, from a store and from a folder.
func TestAnnounced(t *testing.T) {
	r := newFillRig(t, 300) // more than one packet takes
	srv := mountOf(t, serve(t, r.dir))
	folder := t.TempDir()
	for _, bo := range r.plan.BOs {
		b, err := os.ReadFile(filepath.Join(srv.Dir(), bo.File))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, bo.File), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	packets, err := Packets(r.plan)
	if err != nil || len(packets) != 3 {
		t.Fatalf("%d packets, %v", len(packets), err)
	}
	opts := vram.Options{Verify: vram.VerifyAll}
	for name, announce := range map[string]func() (*os.File, func()){
		"store": func() (*os.File, func()) {
			images, err := Open(srv.Dir())
			if err != nil {
				t.Fatal(err)
			}
			conn, err := images.Announce(within(t), r.plan, opts, false)
			if err != nil {
				t.Fatal(err)
			}
			return conn, func() {}
		},
		"folder": func() (*os.File, func()) {
			conn, serve, err := AnnounceHere(folder, r.plan, opts)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				serve(context.Background())
			}()
			return conn, func() { <-done }
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mem := range r.memory {
				clear(mem)
			}
			conn, end := announce()
			if m := r.make(t, conn, packets); m.Type != plugin.OK || m.Status != 0 ||
				!strings.HasPrefix(m.String(), "300 buffer objects, ") {
				t.Errorf("answer %d: %s", m.Status, m)
			}
			end()
			r.filled(t)
			if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultDMA, After: 20, Count: 1}); err != nil {
				t.Fatal(err)
			}
			conn, end = announce()
			if m := r.make(t, conn, packets); m.Status != -int32(unix.EIO) ||
				!strings.Contains(m.String(), "buffer object") || !strings.Contains(m.String(), "of process 77") {
				t.Errorf("dma error: %d, %s", m.Status, m)
			}
			end()
			// One that is not made ends with its connection.
			conn, end = announce()
			conn.Close()
			end()
		})
	}
}
