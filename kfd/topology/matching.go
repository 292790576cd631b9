package topology

// perfect matches each of n left vertices with a right vertex of its own, out
// of m, and returns the partner of each, or nil if that is impossible. edge
// tells which pairs are allowed. fixed, unless nil, gives some left vertices
// their partner, open for the others.
//
// This is the augmenting-path algorithm: O(n·m) per vertex, and there are at
// most some dozen GPUs.
func perfect(n, m int, edge func(i, j int) bool, fixed []int) []int {
	left, _ := matchAll(n, m, func(i, j int) bool {
		return (fixed == nil || fixed[i] == open || fixed[i] == j) && edge(i, j)
	})
	return left
}

// matchAll is perfect, and for the impossible case returns a witness: left
// vertices that have fewer neighbours together than they are.
func matchAll(n, m int, edge func(i, j int) bool) (left, witness []int) {
	right := make([]int, m)
	for j := range right {
		right[j] = open
	}
	allowed := make([]bool, n*m)
	for i := range n {
		for j := range m {
			allowed[i*m+j] = edge(i, j)
		}
	}
	for start := range n {
		seen := make([]bool, m)
		if !augment(start, m, allowed, right, seen) {
			// All that was reached is matched, to vertices that compete with
			// start for it.
			witness = []int{start}
			for j, s := range seen {
				if s {
					witness = append(witness, right[j])
				}
			}
			return nil, witness
		}
	}
	left = make([]int, n)
	for j, i := range right {
		if i != open {
			left[i] = j
		}
	}
	return left, nil
}

func augment(i, m int, allowed []bool, right []int, seen []bool) bool {
	for j := range m {
		if !allowed[i*m+j] || seen[j] {
			continue
		}
		seen[j] = true
		if right[j] == open || augment(right[j], m, allowed, right, seen) {
			right[j] = i
			return true
		}
	}
	return false
}
