// Package podmanrunc has podman checkpoint and restore a container by gpucr-runc: in place, and by an archive on a
// machine with another store.
package podmanrunc
