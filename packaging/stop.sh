#!/bin/sh
# Before removal, not before an upgrade: stores that systemd serves are unmounted. dpkg says "remove", rpm 0.
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl stop 'gpucr-fs@*.service' || :
