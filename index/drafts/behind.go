package drafts

// This file answers large writes to the end of a file before they are in its content. CRIU writes memory with one
// thread and waits for each write. So the data is copied, the write is answered, and a goroutine cuts the copy into
// chunks while CRIU prepares its next write.
//
// The copy is part of the content: the file's size counts it, and everything that takes node.mu to look into the
// content, to change or to seal it appends the copy first. So the order of writes stays, and what has been answered is
// sealed. At most one write of a file waits like this. A copy that cannot be appended breaks the content: every later
// write, flush and seal fails with the first error.

// maxBehind is the most bytes of a write that is answered early: what a mount passes on at a time.
const maxBehind = 1 << 20

// writeBehind takes p, which is written at the end of the file, and appends it soon. It gives false where it took
// nothing; for less than the smallest chunk that is not worth its while. Call with n.mu held and nothing pending.
func (n *node) writeBehind(p []byte) bool {
	c := n.content
	if len(p) < c.s.o.Params.Min || len(p) > maxBehind {
		return false
	}
	b, err := c.s.chunks.Arena.Get(len(p))
	if err != nil {
		return false // append tells of it, if it needs memory too
	}
	c.pending = append(b, p...)
	go func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		_ = c.appendPending() // kept in c.broken
	}()
	return true
}

// appendPending appends the write that was answered early, if there is one. Its error, once there is one, stays.
func (c *content) appendPending() error {
	if b := c.pending; b != nil {
		c.pending = nil
		c.broken = c.append(b)
		c.s.chunks.Arena.Put(b)
	}
	return c.broken
}

// dropPending gives up the write that was answered early.
func (c *content) dropPending() {
	c.s.chunks.Arena.Put(c.pending)
	c.pending = nil
}
