package page

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/gpuimages"
)

const block = 64 << 10

// fillStore makes a store of n checkpoints in families: each has most of the one before it.
func fillStore(t testing.TB, dir string, n, blocks int) *index.Store {
	t.Helper()
	must(t, index.Init(dir, index.InitOptions{}))
	s, err := index.Open(t.Context(), dir, index.Options{FreeFloor: 1 << 20})
	must(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	programs := []string{"postgres", "train-llama", "redis", "notebook", "web", "vllm", "solver", "build"}
	start := time.Now().Add(-30 * 24 * time.Hour)
	var family []uint64
	for i := range n {
		name := fmt.Sprintf("%s-%02d", programs[i/10%len(programs)], i/80*10+i%10)
		if i%10 == 0 {
			family = family[:0]
			for range blocks/2 + random.IntN(blocks) {
				family = append(family, random.Uint64()|1)
			}
		}
		for j := range family {
			if random.IntN(30) == 0 {
				family[j] = random.Uint64() | 1
			}
		}
		var pages bytes.Buffer
		for _, seed := range family {
			noise(&pages, seed)
		}
		pages.Write(make([]byte, len(family)*block/3))
		at := start.Add(time.Duration(i) * 3 * time.Hour)
		labels := map[string]string{
			"command": "/usr/bin/" + programs[i/10%len(programs)] + " --config /etc/app.yaml",
			"host":    fmt.Sprintf("node-%d", i%7),
			"started": at.Format(time.RFC3339),
		}
		o := index.CreateOptions{Labels: labels}
		if i%10 == 9 {
			o.Tags = []string{"nightly"}
		}
		seal(t, s, name, o, map[string]io.Reader{"pages-1.img": &pages, "notes": bytes.NewReader([]byte(name))})
	}
	return s
}

func noise(w io.Writer, seed uint64) {
	b := make([]byte, block)
	for i, r := 0, rand.New(rand.NewPCG(seed, seed)); i < len(b); i += 8 {
		v := r.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	w.Write(b)
}

func seal(t testing.TB, s *index.Store, name string, o index.CreateOptions, files map[string]io.Reader) {
	t.Helper()
	d, err := s.Create(t.Context(), name, o)
	must(t, err)
	for name, r := range files {
		f, err := d.Create(name, 0o600)
		must(t, err)
		_, err = io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(f, 0)}, r, make([]byte, 1<<20))
		must(t, err)
		must(t, f.Close())
	}
	_, err = d.Seal(t.Context())
	must(t, err)
}

// sealGPU adds a checkpoint of a process with buffer objects on two GPUs.
func sealGPU(t testing.TB, s *index.Store, name string, seed uint64) {
	t.Helper()
	host, err := gpuimages.Host(
		t.TempDir(),
		kfdsim.Options{GPUs: []kfdsim.GPU{{ID: 0x11, VRAM: 16 << 30}, {ID: 0x12, VRAM: 16 << 30}}},
	)
	must(t, err)
	var bos []gpuimages.BO
	for i := range 14 {
		bo := gpuimages.BO{Size: int64(i*i+1) << 14, GPU: i % 2, Flags: abi.KFDMemVRAM, Seed: uint64(i) + 1}
		if i%5 == 0 {
			bo.Flags = abi.KFDMemGTT
		}
		if i > 9 {
			bo.Seed += seed
		}
		bos = append(bos, bo)
	}
	list, err := gpuimages.Files(7, gpuimages.Process(40, host, bos), bos)
	must(t, err)
	files := map[string]io.Reader{}
	for _, f := range list {
		files[f.Name] = f.Body
	}
	seal(
		t,
		s,
		name,
		index.CreateOptions{
			Tags:   []string{"gpu"},
			Labels: map[string]string{"command": "/opt/train --gpus 2", "host": "node-3"},
		},
		files,
	)
}

func storeDir(t testing.TB) string { return filepath.Join(t.TempDir(), "store") }
