package main

import (
	"slices"
	"testing"
)

func TestEnvironmentHasOnePath(t *testing.T) {
	got := environment([]string{"A=b", "PATH=/bin", "KFDSIM_PLUGIN=/old", "PATH=/other"}, "/sim", "/criu")
	if want := []string{"A=b", "KFDSIM_PLUGIN=/sim/plugin", "PATH=/sim:/criu:/bin"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
