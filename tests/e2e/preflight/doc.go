// Package preflight holds the preflight to what a real criu does: each finding has a real process, which the preflight
// names and criu refuses, and which, with the remedy, the preflight passes and criu dumps. Ordinary processes pass
// both.
package preflight
