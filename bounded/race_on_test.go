//go:build race

package bounded

// slack is how much more than was told decoding may take, as a divisor. The race detector keeps small objects apart
// that Go otherwise puts into one block.
const slack = 2
