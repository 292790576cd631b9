package keys

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// badgerLog sends Badger's messages to slog: its errors and warnings as they are, its chatter to debug.
type badgerLog struct {
	l    *slog.Logger
	errs chan string // errors, for the one who waits for them
	fail func()      // called for each error that says that something could not be written
}

// ofReading are the beginnings of what Badger (4.9) says of values that it cannot read: their log lost its end in a
// power cut, or is damaged. Nothing is wrong with what it writes.
var ofReading = []string{"Unable to read: Key: ", "Key: [", "Invalid read: "}

// ofFlush is the beginning of what Badger says when it could not write a table. It has what belongs there in memory and
// in a log, and tries again.
const ofFlush = "error flushing memtable to disk: "

func (b badgerLog) say(level slog.Level, f string, v ...any) {
	b.l.Log(context.Background(), level, strings.TrimSpace(fmt.Sprintf(f, v...)), "from", "badger")
}
func (b badgerLog) Errorf(f string, v ...any) {
	text := strings.TrimSpace(fmt.Sprintf(f, v...))
	b.say(slog.LevelError, "%s", text)
	if slices.ContainsFunc(ofReading, func(begin string) bool { return strings.HasPrefix(text, begin) }) {
		return
	}
	if !strings.HasPrefix(text, ofFlush) || !tellsOfScarcity(text) {
		b.fail()
	}
	select {
	case b.errs <- text:
	default:
	}
}
func (b badgerLog) Warningf(f string, v ...any) { b.say(slog.LevelWarn, f, v...) }
func (b badgerLog) Infof(f string, v ...any)    { b.say(slog.LevelDebug, f, v...) }
func (b badgerLog) Debugf(f string, v ...any)   { b.say(slog.LevelDebug, f, v...) }
