// Command gpucr-runc is an OCI runtime for podman, containerd, CRI-O and docker. It is runc, or crun, in everything but
// checkpoint and restore: these go through a store, by gpucr-fs.
//
// Each call of it becomes another program, by exec: the runtime, or gpucr-fs. So it adds a millisecond to what they
// take, and descriptors, signals and exit codes are theirs. Only where a removal must keep restores of the container
// waiting, it starts the runtime, waits for its end, and ends as that did.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	thread "runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/restore/oci"
)

// configVar names another configuration than oci.DefaultConfig.
const configVar = "GPUCR_RUNC_CONFIG"

func main() {
	thread.LockOSThread() // the runtime is killed when the thread ends that started it
	call := oci.Parse(os.Args[1:])
	err := become(call)
	fmt.Fprintf(os.Stderr, "gpucr-runc: %v\n", err)
	// The caller's log is where podman and containerd look for the reason. There is nowhere to tell that it cannot be
	// written.
	_ = call.Log(time.Now(), "gpucr-runc: "+err.Error())
	os.Exit(1)
}

// become runs the program that does what is asked for in place of this one. It returns only when that fails.
func become(call oci.Call) error {
	file := oci.DefaultConfig
	if f := os.Getenv(configVar); f != "" {
		file = f
	}
	conf, unusable := oci.Load(file)
	forStore, err := stored(call)
	if err != nil {
		return err
	}
	if forStore {
		if unusable != nil {
			return unusable
		}
		if err := conf.NeedStore(file); err != nil {
			return err
		}
	}
	runtime, err := conf.FindRuntime()
	if err != nil {
		return errors.Join(err, unusable)
	}
	args := os.Args[1:]
	if call.Command == oci.Delete {
		return remove(call, runtime, args)
	}
	if !forStore { // also where the configuration cannot be used: containers start and end without it
		return run(runtime, args)
	}
	program, err := gpucrFS()
	if err != nil {
		return err
	}
	return run(program, append([]string{"container", "--runtime-config", file, "--"}, args...))
}

// remove has the runtime remove a container, and before that removes what a killed restore of it has left. Restores of
// it wait until the runtime is done. Hooks of the container do not get the lock: some leave processes that stay.
func remove(call oci.Call, runtime string, args []string) error {
	if strings.HasPrefix(filepath.Base(runtime), "crun") {
		return run(runtime, args) // it restores nothing from a store
	}
	lock, err := call.BeforeDelete(os.Getenv(oci.UserDirVar))
	if err != nil {
		return err
	}
	if lock == nil {
		return run(runtime, args)
	}
	cmd := exec.Command(runtime, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // its caller may end this program
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return errors.Join(fmt.Errorf("run %s: %w", runtime, err), lock.Release())
	}
	if err := lock.Release(); err != nil {
		return err
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return fmt.Errorf("%s was ended by a signal: %v", runtime, status.Signal())
	}
	os.Exit(status.ExitStatus())
	return nil
}

// stored tells whether a call goes through the store. Images that are not in a store are the runtime's to restore.
func stored(call oci.Call) (bool, error) {
	if !call.Ours() || call.Command == oci.Checkpoint {
		return call.Ours(), nil
	}
	if _, err := oci.ReadPending(call.Value("image-path")); err == nil {
		return true, nil // gpucr-fs finds out whether it is complete
	}
	_, err := oci.ReadReference(call.Value("image-path"))
	if errors.Is(err, oci.ErrNoReference) {
		return false, nil
	}
	return err == nil, err
}

// gpucrFS finds gpucr-fs: beside this program, else where programs are.
func gpucrFS() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), "gpucr-fs")
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	p, err := exec.LookPath("gpucr-fs")
	if err != nil {
		return "", fmt.Errorf("find gpucr-fs: %w", err)
	}
	return p, nil
}

func run(program string, args []string) error {
	err := syscall.Exec(program, append([]string{program}, args...), os.Environ())
	return fmt.Errorf("run %s: %w", program, err)
}
