// Package restores brings the memory of restored processes, from when CRIU may be started until all of it is there.
//
// Each restore has a guardian beside the daemon, which holds the processes' userfaultfds. When the daemon is killed,
// the guardian of each restore starts a successor; [Table.Adopt] goes on where the killed daemon was. A restore holds
// the daemon until it is over, its hot set packed for the next one. It keeps the checkpoint from being removed until
// all memory is there.
//
// CRIU may be asked before a restore is in the table: [Table.Start] tells when, and what CRIU reads from then on is
// recorded.
//
// # Lock order
//
// Table.mu, then Restore.mu, Spare.mu or the lock of package lifetime. None is held while the store or the feed is
// waited for.
package restores
