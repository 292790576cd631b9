package page

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxRows is how many rows one answer has.
const maxRows = 200

// List is a part of the list of checkpoints.
type List struct {
	All     int   `json:"all"`     // checkpoints in the store
	Matched int   `json:"matched"` // of them those that were searched for
	From    int   `json:"from"`    // the place of the first row
	Rows    []Row `json:"rows"`
	Counted bool  `json:"counted"` // the store has been counted
}

func (s *Server) checkpoints(ctx context.Context, r *http.Request) (any, error) {
	q := r.URL.Query()
	order, ok := orders[defaultTo(q.Get("sort"), "created")]
	if !ok {
		return nil, invalid("there is no column %.40q to sort by", q.Get("sort"))
	}
	from, err := strconv.Atoi(defaultTo(q.Get("from"), "0"))
	if err != nil || from < 0 {
		return nil, invalid("from must be a number")
	}
	b, err := s.keeper.books(ctx)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(strings.ToLower(q.Get("q")))
	found := make([]*Row, 0, len(b.Rows))
	for i := range b.Rows {
		if r := &b.Rows[i]; !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(r.search, w) }) {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, order)
	if q.Get("desc") != "" {
		slices.Reverse(found)
	}
	out := List{
		All:     len(b.Rows),
		Matched: len(found),
		From:    min(from, len(found)),
		Rows:    []Row{},
		Counted: b.Usage != nil,
	}
	for _, r := range found[out.From:min(out.From+maxRows, len(found))] {
		out.Rows = append(out.Rows, *r)
	}
	return out, nil
}

func defaultTo(s, without string) string {
	if s == "" {
		return without
	}
	return s
}

// maxTiles is how many checkpoints the map shows by themselves.
const maxTiles = 240

// Tile is a checkpoint in the map: bytes in packs, those of a chunk at the first checkpoint that has it.
type Tile struct {
	Name  string `json:"name,omitempty"`
	ID    string `json:"id,omitempty"`
	Count int    `json:"count"` // checkpoints that it stands for
	Only  int64  `json:"only"`
	Two   int64  `json:"two"`
	Few   int64  `json:"few"`
	Many  int64  `json:"many"`
}

// Map is what the bytes of a store are used by.
type Map struct {
	Counted  bool   `json:"counted"`
	Counting bool   `json:"counting"`
	Tiles    []Tile `json:"tiles"` // the largest first
	Rest     Tile   `json:"rest"`  // all others together
	All      Tile   `json:"all"`   // sums
}

func (s *Server) tiles(ctx context.Context, _ *http.Request) (any, error) {
	b, err := s.keeper.books(ctx)
	if err != nil {
		return nil, err
	}
	out := Map{Counted: b.Usage != nil, Counting: b.Counting, Tiles: []Tile{}}
	order := make([]*Row, 0, len(b.Rows))
	for i := range b.Rows {
		if b.Rows[i].held() > 0 {
			order = append(order, &b.Rows[i])
		}
	}
	slices.SortStableFunc(order, func(a, b *Row) int {
		switch x, y := a.held(), b.held(); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i, r := range order {
		t := Tile{r.Name, r.ID, 1, r.Held.Only, r.Held.Two, r.Held.Few, r.Held.Many}
		out.All.add(t)
		if i < maxTiles {
			out.Tiles = append(out.Tiles, t)
		} else {
			out.Rest.add(t)
		}
	}
	return out, nil
}

func (t *Tile) add(o Tile) {
	t.Count += o.Count
	t.Only += o.Only
	t.Two += o.Two
	t.Few += o.Few
	t.Many += o.Many
}
