// Package containerd has containerd, by ctr, checkpoint and restore a container by gpucr-runc.
package containerd
