package cipher

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
)

func coder(t testing.TB, first byte) *Coder {
	t.Helper()
	c, err := New(bytes.Repeat([]byte{first}, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Wipe)
	return c
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestSlots(t *testing.T) {
	a, b := coder(t, 1), coder(t, 2)
	for _, n := range []int{1, 4095, 4096, 1 << 20} {
		plain := noise(n)
		salt := a.NewSalt()
		buf := a.Buffer(n + TagSize)
		out, seal := a.EncryptSlot(buf, salt, 7, plain)
		out = bytes.Clone(out)
		a.Done(buf)
		if len(out) != n || n > 16 && bytes.Equal(out, plain) {
			t.Fatalf("%d bytes become %d", n, len(out))
		}
		// Decrypted with room for the tag behind it, which belongs to the next slot, and without.
		next := noise(TagSize)
		try := func(c *Coder, s Seal, page uint32, flip int) error {
			tight, roomy := slices.Clip(bytes.Clone(out)), append(bytes.Clone(out), next...)
			if flip >= 0 {
				tight[flip] ^= 1
				roomy[flip] ^= 1
			}
			err, again := c.DecryptSlot(tight, s, page), c.DecryptSlot(roomy[:n], s, page)
			if err == nil && !bytes.Equal(tight, plain) || again == nil && !bytes.Equal(roomy[:n], plain) {
				t.Errorf("%d bytes come back as others", n)
			}
			if errors.Is(again, ErrOpen) != errors.Is(err, ErrOpen) {
				t.Errorf("%d bytes with room for a tag: %v, without: %v", n, again, err)
			}
			if !bytes.Equal(roomy[n:], next) {
				t.Errorf("what lies behind %d bytes was altered", n)
			}
			return err
		}
		if err := try(a, seal, 7, -1); err != nil {
			t.Error(err)
		}
		bad, badSalt := seal, seal
		bad.Tag[3] ^= 1
		badSalt.Salt[3] ^= 1
		for what, err := range map[string]error{
			"another key": try(b, seal, 7, -1), "another page": try(a, seal, 8, -1), "another tag": try(a, bad, 7, -1),
			"another salt": try(a, badSalt, 7, -1), "an altered byte": try(a, seal, 7, n/2),
			"no key": try(nil, seal, 7, -1),
		} {
			if !errors.Is(err, ErrOpen) {
				t.Errorf("%d bytes with %s: %v", n, what, err)
			}
		}
	}
}

func TestIDs(t *testing.T) {
	a, b := coder(t, 1), coder(t, 2)
	text := []byte("content")
	var plain *Coder
	if plain.Sum(text) != chunk.Sum(text) {
		t.Error("the ids of a plain store are others")
	}
	again := coder(t, 1)
	if a.Sum(text) != again.Sum(text) || a.Sum(text) == b.Sum(text) || a.Sum(text) == chunk.Sum(text) ||
		a.Sum(text) == a.Sum(nil) {
		t.Error("ids do not depend on content and key")
	}
}

func TestRecords(t *testing.T) {
	a, b := coder(t, 1), coder(t, 2)
	for _, text := range [][]byte{nil, []byte("x"), noise(1 << 20)} {
		sealed := a.Seal("one", text)
		if got, err := a.Open("one", sealed); err != nil || !bytes.Equal(got, text) ||
			len(sealed) != len(text)+Overhead {
			t.Errorf("%d bytes: %v", len(text), err)
		}
		if _, err := a.Open("other", sealed); !errors.Is(err, ErrOpen) {
			t.Errorf("for another purpose: %v", err)
		}
		if _, err := b.Open("one", sealed); !errors.Is(err, ErrOpen) {
			t.Errorf("with another key: %v", err)
		}
		for _, cut := range []int{0, 15, 31, len(sealed) - 1} {
			if _, err := a.Open("one", sealed[:cut]); !errors.Is(err, ErrOpen) {
				t.Errorf("cut to %d: %v", cut, err)
			}
		}
	}
}

func TestFiles(t *testing.T) {
	c := coder(t, 1)
	for _, n := range []int{0, 1, partSize - 1, partSize, partSize + 1, 3 * partSize, 3*partSize + 100} {
		plain := noise(n)
		sealed := c.SealBytes("file", plain)
		if int64(len(sealed)) != SealedSize(int64(n)) {
			t.Errorf("%d bytes become %d, not %d", n, len(sealed), SealedSize(int64(n)))
		}
		if got, err := c.OpenBytes("file", sealed); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%d bytes: %v", n, err)
		}
		f, err := c.OpenFile(bytes.NewReader(sealed), int64(len(sealed)), "file")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%d bytes in parts: %v", n, err)
		}
		if n > 10 {
			p := make([]byte, n/2)
			if k, err := f.ReadAt(p, int64(n/3)); err != nil || !bytes.Equal(p[:k], plain[n/3:][:len(p)]) {
				t.Errorf("the middle of %d bytes: %v", n, err)
			}
		}
		for _, cut := range []int{0, 1, 16, len(sealed) - 1, len(sealed) - 16, SaltSize + sealedPart} {
			if cut >= len(sealed) {
				continue
			}
			if _, err := c.OpenBytes("file", sealed[:cut]); !errors.Is(err, ErrOpen) {
				t.Errorf("%d bytes cut to %d: %v", n, cut, err)
			}
			f, err := c.OpenFile(bytes.NewReader(sealed[:cut]), int64(cut), "file")
			if err == nil {
				_, err = io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
			}
			if !errors.Is(err, ErrOpen) {
				t.Errorf("%d bytes cut to %d, in parts: %v", n, cut, err)
			}
		}
		for off := 0; off < len(sealed); off += 1 + len(sealed)/7 {
			b := bytes.Clone(sealed)
			b[off] ^= 8
			if _, err := c.OpenBytes("file", b); !errors.Is(err, ErrOpen) {
				t.Errorf("%d bytes with byte %d altered: %v", n, off, err)
			}
		}
		if _, err := c.OpenBytes("file", append(bytes.Clone(sealed), 0)); !errors.Is(err, ErrOpen) {
			t.Errorf("%d bytes and one more: %v", n, err)
		}
	}
}

// TestKeysInMemory: the page of the keys is locked and left out of dumps.
func TestKeysInMemory(t *testing.T) {
	c := coder(t, 1)
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(c)
	found := false
	for line := range strings.Lines(string(smaps)) {
		flags, ok := strings.CutPrefix(line, "VmFlags:")
		f := " " + strings.TrimSpace(flags) + " "
		found = found || ok && strings.Contains(f, " dd ") && strings.Contains(f, " lo ") && strings.Contains(f, " dc ")
	}
	if !found {
		t.Error("no memory is locked, left out of dumps and not inherited")
	}
}

// TestNoCoreDump ends processes by SIGABRT that may dump core: one that has a key does not, one without does.
func TestNoCoreDump(t *testing.T) {
	if how := os.Getenv("CIPHER_TEST_ABORTS"); how != "" {
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
		if how == "with a key" {
			coder(t, 1)
		}
		unix.Kill(os.Getpid(), unix.SIGABRT)
		select {}
	}
	for how, dumps := range map[string]bool{"with a key": false, "without": true} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNoCoreDump$")
		cmd.Env = append(os.Environ(), "CIPHER_TEST_ABORTS="+how, "GOTRACEBACK=crash")
		cmd.Dir = t.TempDir()
		err := cmd.Run()
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			t.Fatalf("%s: %v", how, err)
		}
		if w := exit.Sys().(syscall.WaitStatus); !w.Signaled() || w.CoreDump() != dumps {
			t.Errorf("%s: %v, dumped core: %t", how, exit, w.CoreDump())
		}
	}
}
