package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/check"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore"
)

func (a *app) checkCmd() *cobra.Command {
	var host string
	var criu criuFlags
	var nvidia cudaFlags
	var req service.CheckRequest
	var pid int
	var parkRings bool
	c := &cobra.Command{
		Use:   "check {STORE NAME | --pid PID [-- CRIU OPTIONS]}",
		Short: "tell whether a checkpoint can be restored here, or a process dumped",
		Long: `Check --pid tells whether process PID and its descendants can be dumped. It only looks, and changes
nothing. It finds descriptors and mappings that criu does not dump, or dumps only with an option, which it names. It
finds CUDA processes that the driver cannot checkpoint ("stops") or cannot bring back ("loses"). Give the options for
criu that you would give to dump, after --. The exit code is 0 when check finds no problem, else 1.

Check STORE NAME tells whether a checkpoint can be restored on this machine. It compares kernel, criu and driver
versions, the images and their payload, the CPU's features, memory, and GPUs. For each GPU it shows the GPU that
takes its place, or each property that does not fit, with both values and the variable that waives it. The variables
of criu's amdgpu plugin have the same effect as at the restore: KFD_FW_VER_CHECK, KFD_SDMA_FW_VER_CHECK,
KFD_CACHES_COUNT_CHECK, KFD_NUM_GWS_CHECK, KFD_VRAM_SIZE_CHECK, KFD_NUMA_CHECK, KFD_CAPABILITY_CHECK.

--host compares with another machine. DIR is a copy of its /sys/class/kfd/kfd/topology, or of its root directory
with sys/class/kfd/kfd/topology, proc/sys/kernel/osrelease, proc/cpuinfo and proc/meminfo. You may leave some of
these out; what is missing is not checked. NAME is a name, a tag or the beginning of an ID. The exit code is 0 when
check finds no problem, else 1.`,
		Example: "  gpucr-fs check store/ web-1\n" +
			"  gpucr-fs check --host /srv/hosts/gpu7 --fast store/ web-1\n" +
			"  gpucr-fs check --pid 4711 -- --tcp-established",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := []string{"STORE", "NAME"}
			if cmd.Flags().Changed("pid") {
				names = nil
			}
			args, rest, err := criuArgs(cmd, args, names)
			if err != nil {
				return err
			}
			if names == nil {
				return a.checkPID(cmd.Context(), pid, rest, nvidia, parkRings)
			}
			req.Ref = args[1]
			if req.Host, err = check.ReadHost(host); errors.Is(err, topology.ErrNoKFD) {
				return usage(
					fmt.Errorf("--host %s: nothing of a host is there", host),
					"copy its /sys/class/kfd/kfd/topology there, or its files below proc/ and sys/",
				)
			} else if err != nil {
				return fmt.Errorf("look at the host: %w", err)
			}
			if host == "" {
				if req.Host.CRIU, err = criu.find(); err == nil {
					req.Host.CRIUVersion = restore.Version(cmd.Context(), req.Host.CRIU)
				}
				req.Host.NVIDIA = nvidia.describe(cmd.Context())
			}
			var warnings []string
			req.Settings, warnings = topology.ParseSettings(os.LookupEnv)
			for _, w := range warnings {
				a.note("%s", w)
			}
			res, err := do(cmd.Context(), a, args[0], "check", service.Check, req)
			if err != nil {
				return err
			}
			if err := a.print(res, func(w io.Writer) { printCheck(w, res) }); err != nil {
				return err
			}
			if !res.OK {
				return fmt.Errorf(
					"%s cannot be restored on this host: see %s", res.Checkpoint, strings.Join(res.Failed(), ", "),
				)
			}
			return nil
		},
	}
	c.Flags().IntVar(&pid, "pid", 0, "look whether `PID` and its descendants can be dumped")
	addParkRings(c.Flags(), &parkRings)
	c.Flags().StringVar(&host, "host", "", "compare with the machine whose files are in `DIR`")
	criu.add(c.Flags())
	nvidia.add(c.Flags())
	c.Flags().BoolVar(&req.Fast, "fast", false, "do not read the payload")
	return c
}

func printCheck(w io.Writer, res check.Report) {
	for _, s := range res.Sections {
		fmt.Fprintf(w, "%s: %s\n", s.Name, s.State)
		for _, line := range s.Problems {
			fmt.Fprintf(w, "  ! %s\n", line)
		}
		for _, line := range s.Facts {
			fmt.Fprintf(w, "  %s\n", line)
		}
	}
	switch unchecked := strings.Join(res.Unchecked(), ", "); {
	case res.OK && unchecked == "":
		fmt.Fprintf(w, "%s can be restored on this host\n", res.Checkpoint)
	case res.OK:
		fmt.Fprintf(
			w, "%s can be restored on this host, as far as is known; not checked: %s\n", res.Checkpoint, unchecked,
		)
	}
}
