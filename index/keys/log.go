package keys

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// badgerLog sends Badger's messages to slog: its errors and warnings as they are, its chatter to debug.
type badgerLog struct {
	l    *slog.Logger
	errs chan string // errors, for who waits for them
	fail func()      // called for each error
}

func (b badgerLog) say(level slog.Level, f string, v ...any) {
	b.l.Log(context.Background(), level, strings.TrimSpace(fmt.Sprintf(f, v...)), "from", "badger")
}
func (b badgerLog) Errorf(f string, v ...any) {
	b.say(slog.LevelError, f, v...)
	b.fail()
	select {
	case b.errs <- strings.TrimSpace(fmt.Sprintf(f, v...)):
	default:
	}
}
func (b badgerLog) Warningf(f string, v ...any) { b.say(slog.LevelWarn, f, v...) }
func (b badgerLog) Infof(f string, v ...any)    { b.say(slog.LevelDebug, f, v...) }
func (b badgerLog) Debugf(f string, v ...any)   { b.say(slog.LevelDebug, f, v...) }
