package index

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// copyName is the copy of config.json: a line with the CRC-32C of the rest in hex, and what config.json holds. Journals
// know the identity of a store, but not where files are cut nor how they are compressed, and one flipped bit of
// config.json would lock everybody out of it, or change the cuts without a word. Stores of earlier builds have none.
const copyName = "config.copy"

// save writes config.json, and its copy before.
func (c Config) save(st storage.Storage, dir string) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	guarded := append(fmt.Appendf(nil, "%08x\n", crc32c.Checksum(b)), b...)
	if err := storage.WriteFile(st, filepath.Join(dir, copyName), guarded); err != nil {
		return err
	}
	return storage.WriteFile(st, filepath.Join(dir, configName), b)
}

// readConfigCopy gives what the copy holds; an error where there is none that is whole.
func readConfigCopy(st storage.Storage, dir string) (Config, error) {
	path := filepath.Join(dir, copyName)
	if info, err := st.Stat(path); err != nil || info.Dir || info.Odd {
		return Config{}, errors.Join(errors.New("no copy of config.json"), err)
	}
	b, err := storage.ReadFile(st, path, maxConfig)
	if err != nil {
		return Config{}, err
	}
	sum, text, _ := strings.Cut(string(b), "\n")
	if sum != fmt.Sprintf("%08x", crc32c.Checksum([]byte(text))) {
		return Config{}, errors.New("the copy of config.json is damaged")
	}
	return parseConfig(path, []byte(text))
}
