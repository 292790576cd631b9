package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// mirror is a Go structure and the C one it mirrors; field names come from the
// tag c.
type mirror struct {
	c      string
	gotype any
}

// TestHeader compiles the plugin's headers and compares sizes, offsets and
// numbers.
func TestHeader(t *testing.T) {
	structs := []mirror{
		{"struct gpucr_msg", Message{}}, {"struct gpucr_range", Range{}},
		{"struct gpucr_packet", Packet{}},
		{"struct kfd_criu_args", abi.KFDCRIUArgs{}}, {"struct kfd_device", abi.KFDCRIUDeviceBucket{}},
		{"struct kfd_bo", abi.KFDCRIUBoBucket{}}, {"struct drm_prime", abi.DRMPrimeArgs{}},
		{"struct kfd_apertures", abi.KFDProcessDeviceApertures{}},
		{"struct kfd_apertures_args", abi.KFDGetProcessAperturesNewArgs{}},
	}
	numbers := map[string]uint64{
		"GPUCR_MAGIC": Magic, "GPUCR_TEXT": TextSize, "GPUCR_MAX_FDS": MaxFDs,
		"GPUCR_HELLO": uint64(Hello), "GPUCR_DUMP_RENDER": uint64(DumpRender), "GPUCR_DUMP_KFD": uint64(DumpKFD),
		"GPUCR_BOS":     uint64(BOs),
		"GPUCR_DUMP_GO": uint64(DumpGo), "GPUCR_RESUME": uint64(Resume), "GPUCR_BYE": uint64(Bye),
		"GPUCR_ATTACH": uint64(Attach),
		"GPUCR_FILE":   uint64(File), "GPUCR_NODE": uint64(Node), "GPUCR_RESTORED": uint64(Restored),
		"GPUCR_RESUMED": uint64(Resumed), "GPUCR_PAUSE": uint64(Pause), "GPUCR_OK": uint64(OK),
		"GPUCR_KFD": uint64(KFD), "GPUCR_RENDER": uint64(Render), "GPUCR_WORKING": uint64(Working),
		"GPUCR_DUMP_DMABUF": uint64(DumpDmabuf), "GPUCR_OBJECTS": uint64(Objects), "GPUCR_MAPPING": uint64(Mapping),
		"GPUCR_EXPORT": uint64(Export), "GPUCR_FILLED": uint64(Filled), "GPUCR_AGAIN": uint64(Again),
		"GPUCR_PLAN": uint64(Plan), "GPUCR_TAKEN": uint64(Taken),
		"DRM_IOC_PRIME_HANDLE_TO_FD": uint64(abi.DRMIocPrimeHandleToFD),
		"KFD_PROCESS_INFO":           abi.KFDCRIUProcessInfo, "KFD_CHECKPOINT": abi.KFDCRIUCheckpoint,
		"KFD_UNPAUSE": abi.KFDCRIUUnpause,
		"KFD_RESTORE": abi.KFDCRIURestore, "KFD_RESUME": abi.KFDCRIUResume, "KFD_IOC_CRIU_OP": uint64(abi.KFDIocCRIUOp),
		"KFD_IOC_APERTURES": uint64(abi.KFDIocGetProcessAperturesNew), "GPUCR_MAX_GPUS": MaxGPUs,
		"sizeof(struct gpucr_range)": RangeSize, "sizeof(struct gpucr_msg)": Size,
	}
	var prog, want strings.Builder
	prog.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include \"wire.h\"\n#include \"kfd.h\"\n" +
		"int main(void) {\n")
	for _, s := range structs {
		typ := reflect.TypeOf(s.gotype)
		expr := fmt.Sprintf("sizeof(%s)", s.c)
		add(&prog, &want, expr, uint64(typ.Size()))
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name := f.Tag.Get("c"); name != "" {
				add(&prog, &want, fmt.Sprintf("offsetof(%s, %s)", s.c, name), uint64(f.Offset))
				add(&prog, &want, fmt.Sprintf("sizeof(((%s *)0)->%s)", s.c, name), uint64(f.Type.Size()))
			}
		}
	}
	for name, n := range numbers {
		add(&prog, &want, name, n)
	}
	prog.WriteString("return 0; }\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.c"), []byte(prog.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "p")
	if msg, err := exec.Command("cc", "-I../../plugin/src", "-o", exe,
		filepath.Join(dir, "p.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\nhint: apt-get install gcc libc6-dev", err, msg)
	}
	got, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(want.String(), "\n")
	for i := range w {
		if i >= len(g) || g[i] != w[i] {
			t.Errorf("C has %q, Go %q", g[min(i, len(g)-1)], w[i])
		}
	}
}

func add(prog, want *strings.Builder, expr string, n uint64) {
	fmt.Fprintf(prog, "printf(\"%%s %%llu\\n\", \"%s\", (unsigned long long)(%s));\n", expr, expr)
	fmt.Fprintf(want, "%s %d\n", expr, n)
}

func TestConn(t *testing.T) {
	a, other, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := NewConn(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []int{unix.SO_PEERPIDFD, unknownOption} {
		pid, pidfd, err := b.peer(option)
		if err != nil || pid != os.Getpid() || ended(pidfd) {
			t.Errorf("other end is process %d, %v", pid, err)
		}
		pidfd.Close()
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := make([]*os.File, MaxFDs)
	for i := range files {
		files[i] = f
	}
	m := &Message{Type: BOs, First: 7, Count: MaxFDs, Status: -5}
	m.SetText(strings.Repeat("x", 1000))
	if err := b.Until(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing has come in time: %v", err)
	}
	if err := a.Send(m, files...); err != nil {
		t.Fatal(err)
	}
	got, fds, err := b.Receive() // what has come is received, however late
	if err != nil {
		t.Fatal(err)
	}
	if *got != *m || len(got.String()) != TextSize-1 {
		t.Errorf("received %+v", got)
	}
	if len(fds) != MaxFDs {
		t.Errorf("received %d descriptors", len(fds))
	}
	closeAll(fds)

	deadline(t, b)
	if _, err := a.sock.Write(make([]byte, Size)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Receive(); !errors.Is(err, ErrProtocol) {
		t.Errorf("a message without magic: %v", err)
	}
	if _, err := a.sock.Write(make([]byte, Size+40)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Receive(); !errors.Is(err, ErrProtocol) {
		t.Errorf("a long message: %v", err)
	}
	a.Close()
	if _, _, err := b.Receive(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	b.Close()
}

func deadline(t *testing.T, c *Conn) {
	t.Helper()
	if err := c.Until(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
}

func TestNotAConnection(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := NewConn(f); err == nil {
		c.Close()
		t.Error("a file became a connection")
	}
}

func FuzzDecode(f *testing.F) {
	for _, typ := range []Type{Hello, File, OK} {
		m := &Message{Type: typ, NumDevices: 3, GPUs: [MaxGPUs]uint32{1, 2, 3}}
		m.SetText("text")
		b, err := m.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:100])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		m, err := decode(b)
		if err != nil {
			return
		}
		if again, err := m.encode(); err != nil || !bytes.Equal(again, b) || len(m.String()) > TextSize {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}
