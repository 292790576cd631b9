package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// TestNamesOfAKilledInit: init is killed when config.json has its name, and the disk does not have that yet. The next
// process finds a store and seals a checkpoint, and the power goes. The store is there.
func TestNamesOfAKilledInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some", "folder", "store")
	if err := Init(dir, InitOptions{PackSize: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := storage.NewMem(dir)
	if err := m.Mkdir(filepath.Join(dir, chunks.PacksFolder)); err != nil {
		t.Fatal(err)
	}
	var killed *storage.Image // before the last sync of the folder
	err = c.save(&storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpSyncDir {
			killed = m.Snapshot()
		}
		return storage.Fault{}
	}}, dir)
	if err != nil {
		t.Fatal(err)
	}
	m = killed.Now()
	o := testOptions(t)
	o.Storage = m
	s, err := Open(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, "a", map[string][]byte{"pages-1.img": heap(11, 1<<20)})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(100) {
		after := m.Snapshot().Crash(seed)
		for _, name := range []string{configName, chunks.PacksFolder} {
			if _, err := after.Stat(filepath.Join(dir, name)); err != nil {
				t.Fatalf("seed %d: a checkpoint was sealed, and %v", seed, err)
			}
		}
	}
}

// TestInitInFolders: init makes the folders above a store, and takes an empty one that is there.
func TestInitInFolders(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"there", "a/b/c", "d/../e"} {
		store := dir + "/" + name
		if name == "there" {
			if err := os.Mkdir(store, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := Init(store, InitOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := LoadConfig(store); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{file, filepath.Join(file, "store")} {
		if err := Init(store, InitOptions{}); err == nil {
			t.Errorf("a store in %s", store)
		}
	}
}
