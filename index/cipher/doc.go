// Package cipher encrypts what a store keeps, and names its chunks so that nobody outside can tell what they hold.
//
// # Keys
//
// A store has a master key of 32 random bytes. Package keyring says how it is kept. Three keys are derived from it by
// BLAKE3 with a context each: for the ids of chunks, for slots, for records and files. From these the keys that encrypt
// are derived by keyed BLAKE3 of a random salt of 16 bytes:
//
//   - A slot has the key of its pack and the page at which it begins as nonce. A store draws a salt when it begins to
//     append to a pack, and another one when it appends to the pack after the store was opened anew: a crash may have
//     left slots behind the end that nobody knows of. Within one opening no page of a pack is given out twice. So no
//     key and nonce serve two plaintexts. The salt stands in the location of each slot, beside the tag.
//   - A record has a key of its own and the nonce 0.
//   - A file or an object that is read in parts has a key of its own, and the number of the part as nonce.
//
// All encryption is AES-256-GCM, by crypto/cipher. What is opened was made with this master key for this purpose, or
// opening it fails.
//
// # Memory
//
// The keys lie in a page that is locked and left out of core dumps, and the process is made undumpable
// (PR_SET_DUMPABLE): keys of packs pass through the heap.
//
// A nil *Coder is that of a plain store: ids are plain BLAKE3, and nothing else may be asked of it.
package cipher
