// Package repair builds the index anew, from the journals beside the packs.
//
// Where a journal is damaged or gone, it takes what the old index and journals put aside earlier still hold, and writes
// a new journal. The damaged one is put aside, since it may still be mended, unless the old index had read all that is
// lost. A journal that was put aside is read again, and removed once it is whole. For a store that is open for reading
// only, nothing is written but the index, and only what can be read is in it.
package repair
