package nodecache

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Beside the file of an object lies one that says which chunks were found in it: for each, id, location, and a CRC-32C
// of both. So what an earlier cache has held against its id is held against its guard only, like what lies in a pack of
// the store. It is appended to and never synced: what is lost of it is looked at again. What it says of a slot that was
// given back since is found wrong by the guard.
const (
	knownSuffix = ".known"
	// mostKnown bounds the records of such a file: twice what an object with slots of one page takes.
	mostKnown = 2 * object.MaxPack / chunk.PageSize
)

// knownRecord is the length of a record in bytes.
func (c *Cache) knownRecord() int {
	if c.o.Sealed {
		return chunk.IDSize + pack.SealedLocSize + 4
	}
	return chunk.IDSize + pack.LocSize + 4
}

// remember notes that chunks were found in an object.
func (c *Cache) remember(name object.Name, list []pack.Chunk) {
	if len(list) == 0 || c.o.Limit <= 0 {
		return
	}
	var b []byte
	for _, x := range list {
		from := len(b)
		b = pack.AppendLoc(append(b, x.ID[:]...), x.Loc)
		b = binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b[from:]))
	}
	c.knownMu.Lock()
	defer c.knownMu.Unlock()
	path := c.path(name) + knownSuffix
	if st, err := c.o.Storage.Stat(path); err == nil && (st.Odd || st.Dir) {
		return
	}
	f, err := c.o.Storage.Open(path, storage.Write)
	if isMissing(err) {
		f, err = c.o.Storage.Open(path, storage.Create)
	}
	if err != nil {
		return // it is looked at again
	}
	defer f.Close()
	size, err := f.Size()
	if record := int64(c.knownRecord()); err == nil && size+int64(len(b)) <= mostKnown*record {
		f.WriteAt(b, size-size%record)
	}
}

// recall reads what an earlier cache has found in an object.
func (c *Cache) recall(name object.Name) error {
	path := c.path(name) + knownSuffix
	st, err := c.o.Storage.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && (st.Odd || st.Dir) {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := storage.ReadFile(c.o.Storage, path, int64(mostKnown*c.knownRecord()))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	record := c.knownRecord()
	for ; len(b) >= record; b = b[record:] {
		r := b[:record-4]
		if crc32c.Checksum(r) != binary.LittleEndian.Uint32(b[record-4:]) {
			continue
		}
		if loc, err := pack.DecodeLoc(r[chunk.IDSize:]); err == nil {
			c.checked[place{name, loc.Page}] = pack.Chunk{ID: chunk.ID(r[:chunk.IDSize]), Loc: loc}
		}
	}
	return nil
}
