package restore

import "context"

// lastWayBack is the note after which CRIU unlocks the network and lets its tasks run. Before it is answered CRIU can
// end all that it has made, and connections are as they were.
const lastWayBack = "post-restore"

// Hold has Restore call f when all tasks are made and none may run yet. Where f fails, so does Restore, and CRIU ends
// its tasks. It works where Args.Holds does.
func (c *CRIU) Hold(f func(context.Context) error) { c.holds = f }

// Holds tells whether CRIU can be held: it gives no notes to this program when it has an action script.
func (a Args) Holds() bool { return !a.Has("action-script") }

// held is called for each of CRIU's notes before it is answered.
func (c *CRIU) held(ctx context.Context, note string) error {
	if note != lastWayBack || c.holds == nil {
		return nil
	}
	return c.holds(ctx)
}
