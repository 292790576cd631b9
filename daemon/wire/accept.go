package wire

import (
	"errors"
	"net"
	"time"
)

// How long Accept waits before it tries again: twice as long each time.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// Accept takes the next connection of a socket that is to serve until it is closed: net.ErrClosed then. Any other error
// passes, most likely a lack of descriptors or memory. Who has connected waits meanwhile. The first error of a row is
// told to failed.
func Accept(l *net.UnixListener, failed func(error)) (*net.UnixConn, error) {
	for pause := time.Duration(0); ; {
		c, err := l.AcceptUnix()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return c, err
		}
		if pause == 0 {
			failed(err)
		}
		pause = min(max(2*pause, firstPause), lastPause)
		time.Sleep(pause)
	}
}
