// Package repair builds the index anew, from the journals beside the packs.
//
// Where a journal is damaged or gone it takes what the old index and journals put aside before still tell, and
// writes a new journal; the damaged one is put aside, for it may be mended yet, unless the old index had read all
// that is lost. What was put aside is read again, and removed once it is whole. For a store that is open for
// reading only nothing is written but the index, and what can be read has to do.
package repair
