package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

// pagesImage is the image with the memory. The others are small.
const pagesImage = "pages-1.img"

const (
	chunksFolder = "desync/chunks" // desync's store in the bucket
	indexFolder  = "desync/index"
	restFolder   = "desync/images" // the other images, as they are
)

// desyncEnv is the environment of desync.
func desyncEnv() []string {
	return append(os.Environ(), "S3_ACCESS_KEY="+s3server.KeyID, "S3_SECRET_KEY="+s3server.Secret,
		"S3_REGION=us-east-1")
}

// desyncAt is an address of desync for a folder of the bucket behind an endpoint, http://HOST:PORT.
func desyncAt(endpoint, bucket, folder string) string {
	return "s3+" + endpoint + "/" + bucket + "/" + folder
}

// fillDesync takes the images to the bucket for desync: the pages as chunks and an index, the others as they are.
func (b *bench) fillDesync(s *subject) error {
	at := func(folder string) string { return desyncAt(b.server.Endpoint, s.bucket, folder) }
	cmd := exec.CommandContext(b.ctx, b.desync, "make", "-s", at(chunksFolder), at(indexFolder)+"/"+pagesImage+".caibx",
		filepath.Join(s.images, pagesImage))
	cmd.Env = desyncEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("desync make: %w: %s", err, out)
	}
	return b.copy(s.images, ":s3:"+s.bucket+"/"+restFolder, b.server.Endpoint, "--exclude", pagesImage)
}

// mounted mounts the pages from the bucket by desync, copies the other images by rclone, and restores with criu.
func mounted(b *bench, s *subject, verify bool) (f figures, err error) {
	dir, mnt, work := filepath.Join(s.dir, "small"), filepath.Join(s.dir, "desync-mnt"), filepath.Join(s.dir, "work")
	defer func() { err = errors.Join(err, os.RemoveAll(dir), os.Remove(mnt), os.RemoveAll(work)) }()
	if err := errors.Join(os.MkdirAll(work, 0o755), b.begin(s)); err != nil {
		return f, err
	}
	defer s.Kill()
	before, begun := b.link.Counts(), time.Now()
	endpoint := "http://" + b.link.Address()
	if err := b.copy(":s3:"+s.bucket+"/"+restFolder, dir, endpoint); err != nil {
		return f, err
	}
	pages, done, err := measure.MountDesync(b.desync, desyncEnv(), desyncAt(endpoint, s.bucket, chunksFolder),
		desyncAt(endpoint, s.bucket, indexFolder)+"/"+pagesImage+".caibx", mnt)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := os.Symlink(pages, filepath.Join(dir, pagesImage)); err != nil {
		return f, err
	}
	return b.restoreByCRIU(s, dir, work, before, begun, verify)
}
