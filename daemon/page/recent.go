package page

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of what is kept of the log.
const (
	maxMessages = 200
	maxText     = 2000 // bytes of a message, and of each of its attributes
	maxAttrs    = 16
)

// Message is a warning or an error of the daemon.
type Message struct {
	Number int64     `json:"number"` // rises by one from message to message
	At     time.Time `json:"at"`
	Level  string    `json:"level"`
	Text   string    `json:"text"`
	Attrs  []Attr    `json:"attrs,omitempty"`
}

// Attr is what a message tells beside its text.
type Attr struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Recent is a slog.Handler that keeps the last warnings and errors. A daemon has it from its start, so a page that is
// opened later shows what went wrong before.
type Recent struct {
	kept  *kept
	attrs []Attr
	group string
}

// kept is what the handlers that come from one share.
type kept struct {
	mu    sync.Mutex
	count int64
	list  []Message // the last of them, oldest first
}

// NewRecent is one that keeps nothing yet.
func NewRecent() *Recent { return &Recent{kept: &kept{}} }

// Enabled is for warnings and errors.
func (r *Recent) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle keeps a message.
func (r *Recent) Handle(_ context.Context, rec slog.Record) error {
	m := Message{
		At:    rec.Time.UTC(),
		Level: strings.ToLower(rec.Level.String()),
		Text:  cut(rec.Message),
		Attrs: slices.Clone(r.attrs),
	}
	rec.Attrs(func(a slog.Attr) bool {
		m.Attrs = append(m.Attrs, r.attr(a))
		return len(m.Attrs) < maxAttrs
	})
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	r.kept.count++
	m.Number = r.kept.count
	if len(r.kept.list) == maxMessages {
		r.kept.list = slices.Delete(r.kept.list, 0, 1)
	}
	r.kept.list = append(r.kept.list, m)
	return nil
}

// WithAttrs gives a handler whose messages have more attributes.
func (r *Recent) WithAttrs(as []slog.Attr) slog.Handler {
	out := *r
	out.attrs = slices.Clone(r.attrs)
	for _, a := range as {
		if len(out.attrs) < maxAttrs {
			out.attrs = append(out.attrs, r.attr(a))
		}
	}
	return &out
}

// WithGroup gives a handler that puts a name before those of attributes.
func (r *Recent) WithGroup(name string) slog.Handler {
	out := *r
	out.group += name + "."
	return &out
}

func (r *Recent) attr(a slog.Attr) Attr {
	v := a.Value.Resolve()
	text := fmt.Sprint(v.Any())
	if v.Kind() == slog.KindFloat64 {
		text = fmt.Sprintf("%.3g", v.Float64())
	}
	return Attr{cut(r.group + a.Key), cut(text)}
}

// Messages gives what is kept, the newest first, and how many there were in all.
func (r *Recent) Messages() (list []Message, count int64) {
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	list = slices.Clone(r.kept.list)
	slices.Reverse(list)
	return list, r.kept.count
}

func cut(s string) string {
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "") + " …"
	}
	return s
}
