// Package cuda dumps and restores processes that use a simulated NVIDIA GPU, with
// the real commands and the real CRIU.
package cuda
