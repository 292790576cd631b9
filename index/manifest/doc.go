// Package manifest is the codec of what the store keeps of a checkpoint besides its payload: the root record, the table
// of files, and the segments that map files onto chunks. It is pure and trusts nothing it reads.
//
// A segment covers a stretch of one file with a sequence of runs. A run is either zeros or a slice of one chunk;
// together they cover the stretch without gap. Encoded, a run is a varint length·4+kind: zeros (0), the data that
// follows where the last data run ended, over as many chunks as it takes (1), or data at a given chunk and offset (2),
// followed by these two as varints. So a file that is written front to back needs one number for every change between
// zeros and data.
package manifest

//go:generate sh -c "cd ../.. && scripts/proto.sh index/manifest/manifest.proto"
