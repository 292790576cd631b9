package service

import (
	"context"
)

// RenameRequest gives a sealed checkpoint another name.
type RenameRequest struct {
	Ref  string `json:"ref"`  // name, tag or ID prefix
	Name string `json:"name"` // the new one
}

// Rename renames a checkpoint.
var Rename = define("rename", func(ctx context.Context, env *Env, r RenameRequest) (Brief, error) {
	if err := env.Store.Rename(ctx, r.Ref, r.Name); err != nil {
		return Brief{}, err
	}
	c, err := env.Store.Checkpoint(r.Name)
	if err != nil {
		return Brief{}, err
	}
	return brief(c.Info()), nil
})

// LabelRequest changes labels of a checkpoint; an empty value takes one away.
type LabelRequest struct {
	Ref    string            `json:"ref"`
	Labels map[string]string `json:"labels"`
}

// Label sets labels of a checkpoint and gives it with all it has then.
var Label = define("label", func(ctx context.Context, env *Env, r LabelRequest) (Brief, error) {
	if len(r.Labels) > 0 {
		if err := env.Store.Label(r.Ref, r.Labels); err != nil {
			return Brief{}, err
		}
	}
	c, err := env.Store.Checkpoint(r.Ref)
	if err != nil {
		return Brief{}, err
	}
	return brief(c.Info()), nil
})
