// Package chunk cuts streams into content-addressed pieces and packs single pieces small. It is pure: bytes in, bytes
// out.
//
// # Splitting
//
// A stream is seen as pages of 4 KiB. Pages of zeros are taken out: they are counted, never stored, and do not end a
// chunk, so a heap riddled with empty pages still yields chunks of full size. What is left, the data stream, is cut
// after a page whose hash falls below a threshold. The hash covers that one page and nothing else: a cut point depends
// on no more than 4 KiB of content, survives insertions and deletions of pages around it, and every page of a process
// stays whole and aligned. The threshold is strict until the average size is reached and lenient afterwards, which
// narrows the spread of sizes. A zero run of MinGap or more also ends a chunk that has its minimum, because what
// follows such a gap is usually another mapping.
//
// # Codecs
//
// A chunk is stored raw, as s2, as zstd or in planes. Encode picks one under a policy and keeps the result only if it
// spares at least one 4 KiB page of disk and an eighth of the chunk; Decode undoes it and insists on the exact length.
// The automatic policy samples the chunk: s2 for what repeats itself (a heap: 0.34 of its size at 570 MB/s a core; zstd
// gives 0.26 at a third of the speed), planes for 16-bit numbers, nothing for the rest.
package chunk
