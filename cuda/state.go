package cuda

import "fmt"

// State is where a process stands, numbered as in the driver's CUprocessState.
type State int

// The driver's states.
const (
	Running State = iota
	Locked
	Checkpointed
	Failed
)

var stateNames = [...]string{"running", "locked", "checkpointed", "failed"}

func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("state %d", int(s))
	}
	return stateNames[s]
}

// Action is one step between states.
type Action string

// The driver's actions.
const (
	Lock       Action = "lock"
	Checkpoint Action = "checkpoint"
	Restore    Action = "restore"
	Unlock     Action = "unlock"
)

// ParseAction reads an action's name.
func ParseAction(s string) (Action, error) {
	switch a := Action(s); a {
	case Lock, Checkpoint, Restore, Unlock:
		return a, nil
	}
	return "", fmt.Errorf("no action %q: lock, checkpoint, restore and unlock are", s)
}
