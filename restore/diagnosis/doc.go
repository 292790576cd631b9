// Package diagnosis explains why CRIU failed: it finds the errors in CRIU's log and looks them up in a table of known
// failures, each with one sentence and a remedy.
//
// The table is in rules.go. A test holds every entry against the messages that are compiled into CRIU's program, so an
// entry for a message that CRIU no longer writes is noticed.
package diagnosis
