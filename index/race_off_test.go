//go:build !race

package index

const raceFactor = 1
