// Package catalog keeps account of which checkpoints stand in a bucket and which packs they need. Any number of
// machines write, read, remove and collect at once. None of them coordinates the others, and no clock is trusted with a
// byte.
//
// # Objects
//
//	roots/NAME          the one root of a checkpoint: pending, sealed or void
//	roots/~ID           the root of what was written later for the checkpoint with that id; the same in all else
//	packs/NONCE-NUMBER  payload; never changed. NONCE is the one of the draft that wrote it
//	tombs/PACK.RUN      collector run RUN may remove PACK
//	removed/REVISION    the packs of a checkpoint that was removed or given other packs, for those who still read it
//
// A root is changed only by writes with a condition. Each PUT has a random revision in its body, a repeated one too, so
// no ETag comes back. A late PUT cannot hit a later state, nor bring an earlier one back after the root was deleted. A
// root without a checkpoint is void: its name is free. Void roots are deleted where the server has conditional
// removals. Elsewhere they stay, about 150 bytes for each name ever used.
//
// A pack's name is used for one PUT. If the PUT has no answer, the pack is written again under another name. So a pack
// that a root lists was written by a PUT that was answered. Once it is deleted, no late PUT brings it back.
//
// # Writing
//
//  1. PUT the root, pending, if absent or void. From now on all packs with its nonce are in use.
//  2. To use a pack that stands already, claim it: list it in the pending root; then list the tombstones; then look
//     whether the pack exists. A claimed pack with a tombstone, or one that is missing, is lost: its content is written
//     anew, under a new name.
//  3. PUT new packs.
//  4. Change the root to sealed, if it is still the one last written. From now on the checkpoint stands.
//
// # Collecting
//
//  1. List tombstones, packs and roots. Set pending roots void that nobody has changed for long.
//  2. PUT a tombstone for each pack that no root needs.
//  3. List the roots again. A pending root needs what it claims and all packs with its nonce. A removed checkpoint
//     needs its packs until its readers have had their time.
//  4. Delete those packs of step 2 that still no root needs. Then delete their tombstones. Take back the tombstones of
//     the others.
//
// If a root cannot be read, nothing is deleted. Remove puts a void one in the place of one that is damaged.
//
// # Why no needed pack is deleted
//
// Say that a collector deletes a pack which a draft has claimed. The collector's list of roots did not have the claim,
// so the claim was published after that list began, and the tombstone was there before. The draft lists tombstones
// after it has published. Either it finds the tombstone, and does not use the pack. Or the tombstone is gone by then. A
// tombstone goes only when its pack has been deleted, or when its own run has not tried to delete the pack and never
// will. Here it was deleted, and the draft finds it missing, because it looks for packs after it has listed tombstones.
//
// A draft's own packs are in use from before they exist until the root is void. A root that was set void cannot be
// sealed by a writer that paused, because its ETag is another one.
//
// Each run has tombstones of its own. With one that two runs share, the first could take it back while the second still
// relies on it.
//
// # Other packs for a checkpoint
//
// What is in use of a pack can be copied: a draft beside the checkpoints writes new packs, and each checkpoint that
// needs the old pack is given the new ones (Exchange). The content stays the same, and so does the
// root's nonce. Collectors need not know of it: a sealed root needs the packs that it lists.
//
//  1. Change the root, if it is still the one that was read: it lists the new packs too, and its content still lies in
//     the old ones. Then list the tombstones, then look whether the new packs stand. If one is lost, the root lists the
//     old ones alone again.
//  2. Keep the old packs for readers, as a removal does.
//  3. Change the root to the new packs and their meta, if it is still the one of step 1.
//
// Why nothing is lost: the new packs are claimed in step 1 as a draft claims packs, so the argument above holds for
// them. The draft that wrote them may have been taken for abandoned meanwhile; then they are found lost. From step 1 on
// they are listed by the root without a gap, and so are the packs that it keeps. A pack that is left in a root by an
// exchange which did not end is not needed there, and may be gone: as a new pack it must be looked for. Removals
// and other exchanges change the root; then the condition of step 3 fails.
//
// A pack that no root needs any more goes as any other. Retire puts a tombstone over it before, so that no draft claims
// it while it stays for readers.
//
// # What stays behind
//
// An exchange that crashed leaves new packs in a root that does not need them. Trim takes them out of it.
//
// A run may crash with tombstones in place. Nobody else knows whether a delete of that run is still on its way, so a
// tombstone stays as long as its pack does. That costs nothing but that the pack is not used for new checkpoints. Only
// Patience.Foreign takes such tombstones away, and it is the one place where time is trusted: it is off by default.
//
// A pending root is left behind by a writer that crashed. A collector counts it as abandoned when the root has not
// changed over Patience.Pending of the collector's own clock. If that is wrong, the writer fails; nothing is lost.
// Writers that take long call Draft.Touch.
//
// # Reading
//
// A reader reads the root, then packs. When the checkpoint is removed its packs stay for Patience.Removed, also when a
// new checkpoint takes the name. A reader that takes longer is told that the checkpoint was removed, or that it has
// other packs now (ErrMoved) and is to be found anew.
package catalog
