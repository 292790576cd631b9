//go:build !race

package bounded

// slack is how much more than was told decoding may take, as a divisor.
const slack = 4
