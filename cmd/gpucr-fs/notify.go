package main

import (
	"fmt"
	"net"
	"os"
)

// notifyVar names the socket of a service manager that waits for this program; see sd_notify(3).
const notifyVar = "NOTIFY_SOCKET"

// notify tells the service manager how far this process is, "READY=1" or "STOPPING=1". Without one nothing is done.
func notify(state string) error {
	path := os.Getenv(notifyVar)
	if path == "" {
		return nil
	}
	if path[0] == '@' { // an abstract name
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
