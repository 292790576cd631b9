// Package podman takes containers of Debian's podman into a store and back, as the manual tells it.
package podman
