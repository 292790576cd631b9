// Package model holds the store to a model of it: random programs of steps run against the store and against plain
// maps, over storage that crashes and fails at any call.
package model
