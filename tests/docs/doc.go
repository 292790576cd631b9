// Package docs holds README and manual to the program: each command in them exists with its options, and is run, page
// by page in their order, on real processes with a real criu. What cannot be run is listed with the reason
// (notrun_test.go).
package docs
