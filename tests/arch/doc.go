// Package arch holds the module to its own rules: which package may import which, where unsafe code may stand, what a
// library must not do, how long a file may grow. The rules are the tables below; a rule that the design outgrows is
// changed here, in the open.
package arch
