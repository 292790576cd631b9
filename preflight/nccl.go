package preflight

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
)

// Variables of NCCL that choose its transports within a machine.
var ncclVariables = []string{"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_CONF_FILE"}

// judgeNCCL tells from a process's environment whether NCCL's transports can be brought back. Seen with driver 580 and NCCL 2.28, two processes and two GPUs:
// with peer-to-peer off, and memory shared otherwise than by descriptors of cuMem, they can; otherwise the driver's restore fails.
func (t *task) judgeNCCL() error {
	f, err := os.Open(t.path("environ"))
	if err != nil {
		return err
	}
	env, err := environment(f, ncclVariables...)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	conf := env["NCCL_CONF_FILE"]
	if conf == "" {
		conf = "/etc/nccl.conf"
	}
	if f, err := os.Open(t.path("root", conf)); err == nil {
		for name, value := range ncclConf(f) {
			if _, ok := env[name]; !ok { // the environment wins
				env[name] = value
			}
		}
		f.Close()
	}
	if lost := ncclLost(env); lost != "" {
		t.add(kindNCCL, "%s", lost)
	}
	return nil
}

// maxConf bounds what is read of a configuration file.
const maxConf = 64 << 10

// ncclConf reads NCCL's configuration file: NAME=VALUE, a line each.
func ncclConf(r io.Reader) map[string]string {
	conf := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxConf))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(name, "#") {
			conf[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return conf
}

// ncclLost says which of NCCL's transports cannot be brought back, "" when all can.
func ncclLost(env map[string]string) string {
	off := env["NCCL_P2P_DISABLE"] == "1" || strings.EqualFold(env["NCCL_P2P_LEVEL"], "LOC") || env["NCCL_P2P_LEVEL"] == "0"
	switch {
	case !off:
		return "peer-to-peer access is on"
	case env["NCCL_CUMEM_ENABLE"] != "0" && env["NCCL_CUMEM_HOST_ENABLE"] != "0":
		return "memory is shared by cuMem"
	}
	return ""
}
