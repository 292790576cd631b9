// Package roots has the root records of checkpoints: which checkpoints there are, what names, tags and labels mean,
// which checkpoints are being written, opened and removed, and what is kept beside a checkpoint: its profile and its
// hot set.
//
// # Names and tags
//
// A word is the name of one checkpoint or the tag of one sealed checkpoint, never both. updateMu is held from the look
// at root records to the end of the commit that replaces them, so a record that was removed meanwhile cannot come back.
// Sealing takes the tags of the draft from the checkpoints that have them, in one frame of a journal.
//
// # Removal
//
// A removal deletes records only. The root record goes first, and stays in the index as an empty one, which keeps an
// older journal from bringing the checkpoint back; the table of files and the segments go when no file of it is open. A
// checkpoint that a restore brings memory from is not removed: see [Set.Keep].
//
// # Lock order
//
// updateMu, (locks of package chunks), mu. Drafts are asked to change their records with neither held. Nothing is
// called back under mu.
package roots
