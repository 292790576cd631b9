package uffd

import (
	"slices"
	"testing"
)

func TestParentsFirst(t *testing.T) {
	tree := tree{1: 0, 20: 1, 5: 20, 30: 5, 7: 30, 6: 1}
	pids := []int{7, 30, 6, 5, 20}
	tree.sort(pids)
	if want := []int{6, 20, 5, 30, 7}; !slices.Equal(pids, want) {
		t.Errorf("%v, want %v", pids, want)
	}
}
