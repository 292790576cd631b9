// Package prefetch orders the reads of a restore. One Queue serves all who
// need bytes of a checkpoint's files, in this order:
//
//  1. demand: a thread is stopped by a page fault, or waits in a read;
//  2. hot set: what an earlier restore touched, in that order (the profile);
//  3. sweep: everything else that is wanted, in file order.
//
// Files are divided into units. A unit is fetched as part of a run: with what is stored together with it (Spanner), and
// then the units next to it that are wanted too and not yet fetched, up to RunBytes for the hot set and the sweep and
// DemandBytes for a demand, so that one read brings several MiB where nobody waits and little where somebody does. A
// unit in flight is never fetched a second time: a caller who asks for it waits for the same fetch. A unit that has
// been delivered is only fetched again when it is demanded again.
//
// While there are demands, or the hot set is not there, the sweep takes short
// runs, and no more of them than there are processors (hold), unless it is Steady.
//
// While a profile is recorded (Options.Recorder) a demand brings little, since all that it brings counts as touched
// (window). A hot set may be packed: copied into one file in the order of the profile (Packed). It is then read from
// there.
//
// What cannot be read for a reason that may pass rests and is read again, for half a minute; other failures are final
// (MayPass). Its units stay in flight, and everything else goes on. Demands that nobody has tried to read yet go before
// it, and a demand for a unit of it has it read at once (hurry).
//
// Workers take runs and hand the bytes to the Sink on their own goroutine, so
// that filling memory happens where the bytes are in the CPU's cache. One of
// them takes demands only. How many of the others work at a time follows the
// measured throughput. Memory is bounded by the buffers: each worker owns one
// run's worth, and Options.Memory bounds their number.
//
// Lock order: Queue.mu, then Recorder.mu. Neither files nor the sink are called
// with one of them held.
package prefetch
