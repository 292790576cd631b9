package criuimg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/bounded"
)

// driverSocket is how the abstract name of a unix socket begins that NVIDIA's driver listens on in each process. The
// number of the process's pid namespace follows, which is the inode of /proc/PID/ns/pid, and the pid in it.
const driverSocket = "\x00cuda-uvmfd-"

// FilesFor gives files.img for a restore in another pid namespace, by its number: the driver's sockets have the names
// that they have in it. nil: there is none to be renamed. An image that cannot be read is CRIU's to refuse: nil, too.
func FilesFor(fsys fs.FS, namespace uint64) ([]byte, error) {
	const name = "files.img"
	r, err := openImage(fsys, name, magicFiles)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.close()
	out := binary.LittleEndian.AppendUint32(nil, magicCommon)
	out = binary.LittleEndian.AppendUint32(out, magicFiles)
	renamed := false
	for {
		b, err := r.bytes()
		switch {
		case errors.Is(err, io.EOF) && renamed:
			return out, nil
		case errors.Is(err, io.EOF), errors.Is(err, ErrCorrupt):
			return nil, nil
		case err != nil:
			return nil, err
		}
		if strings.Contains(string(b), driverSocket) {
			if b, err = renameSocket(b, namespace); err != nil {
				return nil, nil
			}
			renamed = true
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(b))), b...)
	}
}

// renameSocket gives an entry of files.img with the name that its socket has in a pid namespace. All else stays, what
// this package knows nothing of, too.
func renameSocket(b []byte, namespace uint64) ([]byte, error) {
	var e fdinfo.FileEntry
	if err := new(bounded.Budget).Unmarshal(proto.UnmarshalOptions{AllowPartial: true}, b, &e); err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(string(e.GetUsk().GetName()), driverSocket)
	_, pid, dash := strings.Cut(rest, "-")
	if !ok || !dash {
		return b, nil
	}
	e.Usk.Name = fmt.Appendf(nil, "%s%d-%s", driverSocket, namespace, pid)
	return proto.MarshalOptions{AllowPartial: true, Deterministic: true}.Marshal(&e)
}
