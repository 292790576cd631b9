package keyring

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/gpucr/gpucr-fs/index/cipher"
)

// Access says how a key is unwrapped: by which file or command. It holds no secret itself.
type Access struct {
	Identity   string `json:"identity,omitempty"`        // file of age identities
	Passphrase string `json:"passphrase_file,omitempty"` // file whose first line is the passphrase
	Command    string `json:"key_command,omitempty"`     // for sh; see run
}

// Wrap says for whom the master key is wrapped.
type Wrap struct {
	Recipients []string // age1…
	Passphrase string   // file whose first line is the passphrase
	Command    string   // for sh; see run
}

// None says whether it names nobody.
func (w Wrap) None() bool { return len(w.Recipients) == 0 && w.Passphrase == "" && w.Command == "" }

const (
	// maxFile bounds a file of identities or with a passphrase, and what a command may print, in bytes.
	maxFile = 64 << 10
	// commandTime is how long a command may take.
	commandTime = time.Minute
	// maxWork is the highest work factor that is accepted of a wrapped key: 2^20 takes some seconds and a GiB.
	maxWork = 20
)

// errNotFor: a key is of another kind than what was given.
var errNotFor = errors.New("it is of another kind")

func (w Wrap) wrap(ctx context.Context, master []byte) (made []Key, err error) {
	for _, text := range w.Recipients {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, fmt.Errorf("recipient %.80q: %w", text, err)
		}
		b, err := seal(master, r)
		if err != nil {
			return nil, err
		}
		made = append(made, Key{Kind: Recipient, Recipient: text, Wrapped: b})
	}
	if w.Passphrase != "" {
		text, err := passphrase(w.Passphrase)
		if err != nil {
			return nil, err
		}
		r, err := age.NewScryptRecipient(text)
		if err != nil {
			return nil, err
		}
		b, err := seal(master, r)
		if err != nil {
			return nil, err
		}
		made = append(made, Key{Kind: Passphrase, Wrapped: b})
	}
	if w.Command != "" {
		b, err := run(ctx, w.Command, "wrap", []byte(base64.StdEncoding.EncodeToString(master)+"\n"))
		if err != nil {
			return nil, err
		}
		if len(b) == 0 || bytes.Contains(b, master) ||
			bytes.Contains(b, []byte(base64.StdEncoding.EncodeToString(master))) {
			return nil, errors.New("the key command printed the key itself, or nothing, where it was to wrap it")
		}
		made = append(made, Key{Kind: Command, Wrapped: b})
	}
	return made, nil
}

func seal(master []byte, r age.Recipient) ([]byte, error) {
	var b bytes.Buffer
	w, err := age.Encrypt(&b, r)
	if err == nil {
		_, err = w.Write(master)
	}
	if err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

// unwrap gives the master key of a wrapped one; errNotFor where a does not say how.
func (a Access) unwrap(ctx context.Context, k Key) ([]byte, error) {
	switch {
	case k.Kind == Recipient && a.Identity != "":
		text, err := readFile(a.Identity)
		if err != nil {
			return nil, err
		}
		ids, err := age.ParseIdentities(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("identity file %s: %w", a.Identity, err)
		}
		return open(k.Wrapped, ids...)
	case k.Kind == Passphrase && a.Passphrase != "":
		text, err := passphrase(a.Passphrase)
		if err != nil {
			return nil, err
		}
		id, err := age.NewScryptIdentity(text)
		if err != nil {
			return nil, err
		}
		id.SetMaxWorkFactor(maxWork)
		return open(k.Wrapped, id)
	case k.Kind == Command && a.Command != "":
		text, err := run(ctx, a.Command, "unwrap", k.Wrapped)
		if err != nil {
			return nil, err
		}
		defer clear(text)
		master, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
		if err != nil || len(master) != cipher.KeySize {
			return nil, errors.New("the key command did not print a key in base64")
		}
		return master, nil
	}
	return nil, errNotFor
}

func open(wrapped []byte, ids ...age.Identity) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(wrapped), ids...)
	if err != nil {
		return nil, err
	}
	master, err := io.ReadAll(io.LimitReader(r, cipher.KeySize+1))
	if err == nil && len(master) != cipher.KeySize {
		err = errors.New("it wraps no master key")
	}
	return master, err
}

func passphrase(path string) (string, error) {
	text, err := readFile(path)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fmt.Errorf("passphrase file %s: its first line is empty", path)
	}
	return line, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFile)
	}
	return b, err
}

// run runs a key command with sh. What it is to do is in the variable GPUCR_FS_KEY_ACTION. wrap: on its standard input
// is the key in base64, and it prints it wrapped, in any form. unwrap: the other way round.
func run(ctx context.Context, command, action string, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env = append(cmd.Environ(), "GPUCR_FS_KEY_ACTION="+action)
	cmd.Stdin = bytes.NewReader(in)
	cmd.WaitDelay = time.Second
	var out, complaint limited
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("key command (%s): %w: %.200s", action, err, strings.TrimSpace(string(complaint)))
	}
	return out, nil
}

// limited keeps what is written to it, up to maxFile bytes.
type limited []byte

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), maxFile-len(*l))
	*l = append(*l, p[:n]...)
	if n < len(p) {
		return n, fmt.Errorf("it prints more than %d bytes", maxFile) // it is not read to the end
	}
	return n, nil
}
