package lifetime

import (
	"testing"
	"time"
)

func gone(s *Lifetime) bool {
	select {
	case <-s.Idle():
		return true
	default:
		return false
	}
}

func TestLastHoldEndsTheStay(t *testing.T) {
	s := New()
	if gone(s) || !s.Hold() || !s.HoldClient() {
		t.Fatal("a new daemon cannot be held")
	}
	s.Release()
	if gone(s) {
		t.Error("it left while it was held")
	}
	s.Release()
	if !gone(s) || s.Hold() || s.HoldClient() {
		t.Error("it stays with nothing that holds it")
	}
}

func TestStarterIsAwaited(t *testing.T) {
	s := New()
	s.Await(time.Hour)
	if !s.Hold() {
		t.Fatal("cannot be held")
	}
	s.Release()
	if gone(s) {
		t.Error("it left before its starter came")
	}
	if !s.HoldClient() {
		t.Fatal("the starter cannot hold it")
	}
	s.Release()
	if !gone(s) {
		t.Error("it stays after its starter has gone")
	}
	late := New()
	late.Await(time.Nanosecond)
	<-late.Idle()
}

func TestStop(t *testing.T) {
	s := New()
	s.Hold()
	s.Stop()
	s.Release()
	if s.Hold() || gone(s) {
		t.Error("stopped by order, it was held again or left by itself")
	}
}
