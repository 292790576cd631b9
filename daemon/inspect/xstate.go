package inspect

import (
	"fmt"
	"io/fs"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
)

// XState gives the components of the x86 extended state that the tasks of a report have in use, threads included: the
// union of their xstate_bv.
func XState(fsys fs.FS, r *Report) (used uint64, err error) {
	i := &images{fsys: fsys, dir: r.Dir, left: maxTotal, buf: make([]byte, 4<<10)}
	var walk func([]*Process) error
	walk = func(list []*Process) error {
		for _, p := range list {
			if p.Memory == nil {
				continue // not alive any more
			}
			for _, tid := range p.Threads {
				var core criucore.CoreEntry
				if err := i.one(fmt.Sprintf("core-%d.img", tid), magicCore, &core); err != nil {
					return err
				}
				used |= core.GetThreadInfo().GetFpregs().GetXsave().GetXstateBv()
			}
			if err := walk(p.Children); err != nil {
				return err
			}
		}
		return nil
	}
	return used, walk(r.Processes)
}
