// Package kfd tests dumps and restores of a GPU application on the simulator,
// with unmodified criu and a minimal plugin.
package kfd
