package docs

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/keyring/keyringtest"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

const limit = time.Minute

// walk runs the commands of a page. Its folders, ports, keys, buckets and processes stand in for those of the page.
type walk struct {
	t         *testing.T
	dir       string
	env       []string
	stores    int                           // one more at each init
	process   *lazytarget.Target            // the last one that was started
	dumped    map[string]*lazytarget.Target // by the name of the checkpoint
	latest    string                        // the name of the last checkpoint
	recipient string
	url       string
	before    map[string]string // what else a machine has, made before a command is run
}

func newWalk(t *testing.T) *walk {
	w := &walk{t: t, dir: t.TempDir(), dumped: map[string]*lazytarget.Target{}}
	for _, name := range []string{"images", "etc", "dumps", "run"} {
		if err := os.Mkdir(filepath.Join(w.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.env = append(os.Environ(), "PATH="+path, "GPUCR_RUNC_CONFIG="+filepath.Join(w.dir, "etc/runtime.json"))
	t.Cleanup(func() {
		if w.mounted() {
			w.sh("gpucr-fs umount /images")
		}
		for n := range w.stores {
			store := filepath.Join(w.dir, fmt.Sprintf("store-%d", n+1))
			for end := time.Now().Add(limit); !cli.DaemonEnded(store); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Errorf("the daemon of %s does not end", store)
					break
				}
			}
		}
	})
	return w
}

// target starts a process, whose pid is to be free again once it has ended.
func (w *walk) target() *lazytarget.Target {
	w.t.Helper()
	p, err := lazytarget.Start(target, w.t.TempDir(), lazytarget.Options{MB: 16, Threads: 1, Seed: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		p.Reap(stop)
		close(stopped)
	}()
	w.t.Cleanup(func() {
		p.Kill()
		close(stop)
		<-stopped
	})
	return p
}

var (
	bucket     = regexp.MustCompile(`s3://[^']*`)
	identifier = regexp.MustCompile(`\b(4711|PID)\b`)
	named      = regexp.MustCompile(`(?:store/|-D /images/\.checkpoints/)\s?([\w-]+)`)
	restored   = regexp.MustCompile(`as process (\d+)`)
	keyID      = regexp.MustCompile(`\b05351b7a\b`)
	anyKey     = regexp.MustCompile(`(?m)\b[0-9a-f]{8}\b`)
)

// adapt puts what the test has in the place of what the page names.
func (w *walk) adapt(line string) string {
	if identifier.MatchString(line) {
		line = identifier.ReplaceAllString(line, strconv.Itoa(w.process.PID))
	}
	line = strings.NewReplacer(
		"ssh other gpucr-fs import store/", "gpucr-fs import other/", "store/", fmt.Sprintf("store-%d/", w.stores),
		"/images", filepath.Join(w.dir, "images"), "/run/web", filepath.Join(w.dir, "run/web"),
		"/var/lib/dumps", filepath.Join(w.dir, "dumps"), "/var/lib/gpucr-fs/", w.dir+"/",
		"/etc/gpucr-fs", filepath.Join(w.dir, "etc"), "/tmp/", w.dir+"/", "age1...", w.recipient,
	).Replace(line)
	return bucket.ReplaceAllLiteralString(line, w.url)
}

func (w *walk) command(line string) (*exec.Cmd, *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	w.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "sh", "-ec", w.adapt(line))
	cmd.Dir, cmd.Env, cmd.WaitDelay = w.dir, w.env, time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

func (w *walk) sh(line string) string {
	w.t.Helper()
	cmd, out := w.command(line)
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("%s (%s): %v\n%s", line, w.adapt(line), err, out)
	}
	return out.String()
}

func (w *walk) mounted() bool {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	return strings.Contains(string(b), " "+filepath.Join(w.dir, "images")+" ")
}

// ends kills processes with what they have forked, each in a group of its own, and waits until their pids are free.
func (w *walk) ends(pids ...int) {
	w.t.Helper()
	for _, pid := range pids {
		syscall.Kill(-pid, syscall.SIGKILL)
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range pids {
		for end := time.Now().Add(limit); syscall.Kill(pid, 0) == nil || syscall.Kill(-pid, 0) == nil; {
			if time.Now().After(end) {
				w.t.Fatalf("process %d does not end", pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// goesOn sees that the process of a checkpoint works, and ends it.
func (w *walk) goesOn(p *lazytarget.Target, pids ...int) {
	w.t.Helper()
	if err := p.Beats(2, limit); err != nil {
		w.t.Fatal(err)
	}
	w.ends(pids...)
}

// of gives the process of the checkpoint that a line restores, whose pid is free.
func (w *walk) of(line string) *lazytarget.Target {
	w.t.Helper()
	name := w.latest
	if m := named.FindStringSubmatch(line); m != nil {
		name = m[1]
	}
	p := w.dumped[name]
	if p == nil {
		w.t.Fatalf("%s: %s was not dumped before", line, name)
	}
	w.ends(p.PID)
	return p
}

// until runs a command that ends by Ctrl-C.
func (w *walk) until(line, prints string) {
	w.t.Helper()
	cmd, out := w.command("exec " + line)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	cmd.Process.Signal(syscall.SIGINT)
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 130 || !strings.Contains(out.String(), prints) {
		w.t.Errorf("%s: %v\n%s", line, err, out)
	}
}

// run runs a command of the page.
func (w *walk) run(line string) {
	w.t.Helper()
	if identifier.MatchString(line) && (w.process == nil || !w.process.Alive()) {
		w.process = w.target()
	}
	if script := w.before[line]; script != "" {
		for step := range strings.Lines(script) {
			w.run(strings.TrimSpace(step))
		}
	}
	switch {
	case strings.Contains(line, "gpucr-fs init ") && strings.Contains(line, " store/"):
		w.stores++
		w.sh(line)
	case strings.HasPrefix(line, "gpucr-fs mount "):
		if w.mounted() {
			w.sh("gpucr-fs umount /images")
		}
		w.sh(line)
	case strings.HasPrefix(line, "gpucr-fs dump "), strings.HasPrefix(line, "criu dump "):
		w.sh(line)
		w.latest = named.FindStringSubmatch(line)[1]
		w.dumped[w.latest] = w.process
		if !strings.Contains(line, "--leave-running") {
			if err := w.process.Dumped(); err != nil {
				w.t.Fatal(err)
			}
		}
	case strings.HasPrefix(line, "criu restore ") && !strings.Contains(line, " -d"):
		p := w.of(line)
		cmd, out := w.command("exec " + line)
		if err := cmd.Start(); err != nil {
			w.t.Fatal(err)
		}
		w.goesOn(p, p.PID)
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() < 0 {
			w.t.Errorf("%s: %v\n%s", line, err, out)
		}
	case strings.HasPrefix(line, "criu restore "):
		p := w.of(line)
		w.sh(line)
		w.goesOn(p, p.PID)
	case strings.HasPrefix(line, "gpucr-fs restore "):
		p := w.of(line)
		var pids []int
		for _, m := range restored.FindAllStringSubmatch(w.sh(line), -1) {
			pid, _ := strconv.Atoi(m[1])
			pids = append(pids, pid)
		}
		own := strings.Contains(line, "--own-pids") || strings.Contains(line, "--copies")
		if want := 1 + 3*strings.Count(line, "--copies 4"); len(pids) != want || own == slices.Contains(pids, p.PID) {
			w.t.Fatalf("%s: processes %v", line, pids)
		}
		w.goesOn(p, pids...)
	case strings.HasPrefix(line, "gpucr-fs serve "):
		w.until(line, "http://127.0.0.1:9100/")
	case strings.HasPrefix(line, "gpucr-fs stats --watch "):
		w.until(line, "\n")
	case strings.HasPrefix(line, "gpucr-fs repair "):
		if w.mounted() {
			w.sh("gpucr-fs umount /images")
		}
		w.sh(line)
	case strings.HasPrefix(line, "gpucr-fs key remove "):
		ids := anyKey.FindAllString(w.sh("gpucr-fs key list store/"), -1)
		w.sh(keyID.ReplaceAllString(line, ids[len(ids)-1]))
	case strings.HasPrefix(line, "make "):
		// Without a shell: nothing that stands behind the target can be a command of its own.
		cmd := exec.Command("make", append([]string{"-n"}, strings.Fields(line)[1:]...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Errorf("%s: %v\n%s", line, err, out)
		}
	default:
		w.sh(line)
	}
}

// page runs all of a page's commands in their order, but for those that are listed as not run.
func (w *walk) page(name string, lines []string, least int) {
	w.t.Helper()
	ran := 0
	for _, line := range lines {
		if notRun[name][line] != "" {
			continue
		}
		w.run(line)
		ran++
	}
	if ran < least {
		w.t.Errorf("%s: only %d commands were run", name, ran)
	}
}

// keys makes an age identity, and what opens a store by others means.
func (w *walk) keys() {
	w.t.Helper()
	identity, recipient := keyringtest.Identity(w.t)
	w.recipient = recipient
	bin := filepath.Join(w.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		w.t.Fatal(err)
	}
	for name, text := range map[string]string{
		"me.txt":         identity + "\n",
		"passphrase.txt": "a passphrase for tests\n",
		// It does what a key service does, in that what it prints is not the key, and gives it back.
		"bin/my-kms": "#!/bin/sh\ntr A-Za-z N-ZA-Mn-za-m\n",
	} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	w.env = append(w.env, "PATH="+bin+":"+path, "GPUCR_FS_IDENTITY="+filepath.Join(w.dir, "me.txt"))
}

// bucket starts a server with a bucket.
func (w *walk) bucket() {
	w.t.Helper()
	server := s3server.Start(w.t)
	server.Bucket(w.t, "bucket")
	w.url = "s3://bucket/team?endpoint=" + server.Endpoint + "&region=us-east-1"
	w.env = append(w.env, "AWS_ACCESS_KEY_ID="+s3server.KeyID, "AWS_SECRET_ACCESS_KEY="+s3server.Secret)
}

// free fails where somebody has the port of the pages already.
func free(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:9100")
	if err != nil {
		t.Fatalf("the manual's port is taken: %v", err)
	}
	l.Close()
}
