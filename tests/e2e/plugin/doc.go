// Package plugin tests dumps and restores of a GPU application with the CRIU
// plugin, on the simulator and under unmodified criu.
package plugin
