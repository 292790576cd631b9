// Command kfdsim runs the GPU simulator by hand.
//
//	kfdsim shell [FLAGS] [COMMAND...]  a shell, or a command, that has the GPUs
//	kfdsim serve [FLAGS] --dir DIR     the devices in DIR, until interrupted
//	kfdsim get DIR PATH                asks the control socket, e.g. /state
//	kfdsim post DIR PATH [JSON]        tells it, e.g. /faults
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	code, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "kfdsim:", strings.TrimPrefix(err.Error(), "kfdsim: "))
	}
	os.Exit(code)
}

const usage = "usage: kfdsim shell|serve|get|post ..., see kfd/kfdsim/README.md"

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New(usage)
	}
	switch args[0] {
	case "shell":
		return shell(ctx, args[1:])
	case "serve":
		return serve(ctx, args[1:])
	case "get", "post":
		if len(args) < 3 || len(args) > 4 {
			return 2, errors.New(usage)
		}
		return control(ctx, strings.ToUpper(args[0]), args[1], args[2], strings.Join(args[3:], ""))
	}
	return 2, errors.New(usage)
}

// gpuFlag is a repeatable --gpu flag.
type gpuFlag []kfdsim.GPU

func (g *gpuFlag) String() string { return "" }

// Set parses
// MODEL[,vram=BYTES][,visible=BYTES][,resident=BYTES][,rate=BYTES/S][,id=N][,hive=N][,partitions=N][,numa=N]
// [,fw=N][,sdmafw=N].
func (g *gpuFlag) Set(s string) error {
	parts := strings.Split(s, ",")
	gpu := kfdsim.GPU{Model: parts[0]}
	for _, p := range parts[1:] {
		key, val, _ := strings.Cut(p, "=")
		n, err := parseSize(val)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		switch key {
		case "vram":
			gpu.VRAM = uint64(n)
		case "visible":
			gpu.VisibleVRAM = uint64(n)
		case "resident":
			gpu.Resident = uint64(n)
		case "rate":
			gpu.DMARate = n
		case "id":
			gpu.ID = uint32(n)
		case "hive":
			gpu.Hive = uint64(n)
		case "partitions":
			gpu.Partitions = uint32(n)
		case "numa":
			gpu.NUMANode = int(n)
		case "fw":
			gpu.FirmwareVersion = uint32(n)
		case "sdmafw":
			gpu.SDMAFirmwareVersion = uint32(n)
		default:
			return fmt.Errorf("no property %q", key)
		}
	}
	*g = append(*g, gpu)
	return nil
}

// parseSize takes a number with an optional K, M or G (powers of 1024).
func parseSize(s string) (float64, error) {
	unit := 1.0
	switch {
	case strings.HasSuffix(s, "K"):
		unit = 1 << 10
	case strings.HasSuffix(s, "M"):
		unit = 1 << 20
	case strings.HasSuffix(s, "G"):
		unit = 1 << 30
	}
	n, err := strconv.ParseFloat(strings.TrimRight(s, "KMG"), 64)
	return n * unit, err
}

// start parses the common flags and starts the simulator. made is the folder
// that was made for it, to be removed in the end.
func start(name string, args []string) (s *kfdsim.Sim, rest []string, made string, err error) {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	var gpus gpuFlag
	fs.Var(
		&gpus,
		"gpu",
		"a GPU: MODEL[,vram=4G][,visible=..][,rate=15.8e9][,id=..][,hive=..][,partitions=..][,numa=..]; may be "+
			"repeated (default two mi50)",
	)
	dir := fs.String("dir", "", "empty directory for the devices (default a temporary one)")
	cpus := fs.Int("cpu-nodes", 1, "number of CPU nodes")
	check := fs.Bool(
		"check-fills", false, "make it a fault of a queue to come to memory that a restore has not filled by DMA",
	)
	verbose := fs.Bool("v", false, "log every refused request")
	if err := fs.Parse(args); err != nil {
		return nil, nil, "", err
	}
	if *dir == "" {
		if name == "serve" {
			return nil, nil, "", errors.New("serve needs --dir")
		}
		if made, err = os.MkdirTemp("", "kfdsim-"); err != nil {
			return nil, nil, "", err
		}
		*dir = made
	} else if err := os.MkdirAll(*dir, 0o755); err != nil {
		return nil, nil, "", err
	}
	level := slog.LevelWarn
	if *verbose {
		level = slog.LevelDebug
	}
	s, err = kfdsim.Start(kfdsim.Options{Dir: *dir, GPUs: gpus, CPUNodes: *cpus, CheckFills: *check,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))})
	return s, fs.Args(), made, err
}

func serve(ctx context.Context, args []string) (int, error) {
	s, rest, _, err := start("serve", args)
	if err != nil {
		return 2, err
	}
	if len(rest) > 0 {
		return 2, errors.Join(errors.New(usage), s.Close())
	}
	shim, err := s.BuildShim(os.Getenv("CC"))
	if err != nil {
		return 1, errors.Join(err, s.Close())
	}
	fmt.Printf("devices %s\nsysfs   %s\nshim    %s\n", s.DevDir(), s.SysDir(), shim)
	<-ctx.Done()
	if err := s.Close(); err != nil {
		return 1, err
	}
	return 0, nil
}

// shell runs a command, or a shell, in a mount namespace with the devices.
func shell(ctx context.Context, args []string) (code int, err error) {
	s, command, made, err := start("shell", args)
	if err != nil {
		return 2, err
	}
	dir := filepath.Dir(s.DevDir())
	defer func() {
		if cerr := s.Close(); cerr != nil {
			code, err = 1, errors.Join(err,
				fmt.Errorf("%w\nhint: end the processes that use the devices, then umount %s and remove %s", cerr,
					s.DevDir(), dir))
			return
		}
		if made != "" {
			err = errors.Join(err, os.RemoveAll(made))
		}
	}()
	shim, err := s.BuildShim(os.Getenv("CC"))
	if err != nil {
		return 1, err
	}
	if len(command) == 0 {
		sh := os.Getenv("SHELL")
		if sh == "" {
			sh = "/bin/sh"
		}
		command = []string{sh}
		fmt.Fprint(os.Stderr, welcome(dir, shim))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, kfdsim.EnterScript), append([]string{dir}, command...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd.Env = append(os.Environ(), "KFDSIM_DIR="+dir, "KFDSIM_SHIM="+shim,
		"PATH="+filepath.Dir(self)+":"+os.Getenv("PATH"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

func welcome(dir, shim string) string {
	plugin := os.Getenv("KFDSIM_PLUGIN")
	if plugin == "" {
		plugin = "PLUGIN-FOLDER"
	}
	return fmt.Sprintf(`This shell has simulated AMD GPUs: /dev/kfd, /dev/dri/renderD*, /sys/class/kfd.
Run the test application and watch it:
  mkdir /tmp/app; setsid gpuapp --dir /tmp/app --procs 2 </dev/null >/tmp/app/log 2>&1 &
  cat /tmp/app/status.*
Look at the GPUs:
  kfdsim get %[1]s /state
criu needs the shim: LD_PRELOAD=%[2]s criu dump ... -L %[3]s
kfd/kfdsim/README.md has a whole session. End what you started, then leave with exit.
`, dir, shim, plugin)
}

// control speaks to the control socket of a running simulator.
func control(ctx context.Context, method, dir, path, body string) (int, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, kfdsim.ControlSocket))
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://kfdsim"+path, strings.NewReader(body))
	if err != nil {
		return 2, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 1, err
	}
	defer res.Body.Close()
	if _, err := io.Copy(os.Stdout, res.Body); err != nil {
		return 1, err
	}
	if res.StatusCode != http.StatusOK {
		return 1, nil
	}
	return 0, nil
}
