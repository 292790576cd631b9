package s3

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

const (
	scheme      = "s3://"
	addressHint = "give it as s3://BUCKET/PREFIX?endpoint=https://HOST[:PORT]&region=REGION; " +
		"prefix, endpoint and region may be left out"

	maxAddress = 2048
	// maxPrefix leaves room for the longest key of the store in the 1024 bytes that S3 allows.
	maxPrefix = 512
	hostLabel = `[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`
)

// Address says where a bucket is. It holds no secrets.
type Address struct {
	Bucket   string
	Prefix   string // of all keys, without slashes at its ends; "" for none
	Endpoint string // http://HOST[:PORT] or https://HOST[:PORT]; "" for Amazon's
	Region   string // "" for what the server tells
}

var (
	bucketName  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixName  = regexp.MustCompile(`^[A-Za-z0-9_.=@-]+$`)
	regionName  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	hostPattern = regexp.MustCompile(`^` + hostLabel + `(\.` + hostLabel + `)*$`)
)

// Parse takes an address apart. Its errors are of class bucket.Invalid, have a hint, and do not repeat the address, as
// somebody may have written a password into it.
func Parse(s string) (Address, error) {
	a, err := parse(s)
	if err != nil {
		return Address{}, &bucket.Error{Class: bucket.Invalid, Op: "address of the bucket", Err: err, Hint: addressHint}
	}
	return a, nil
}

func parse(s string) (a Address, err error) {
	rest, ok := strings.CutPrefix(s, scheme)
	switch {
	case len(s) > maxAddress:
		return a, fmt.Errorf("it is longer than %d bytes", maxAddress)
	case !ok:
		return a, fmt.Errorf("it does not begin with %s", scheme)
	case strings.ContainsAny(rest, "#"):
		return a, fmt.Errorf("it has a fragment")
	}
	place, query, asked := strings.Cut(rest, "?")
	if strings.Contains(place, "@") && !strings.Contains(strings.SplitN(place, "@", 2)[0], "/") {
		return a, fmt.Errorf("it holds credentials; those are taken from the environment or AWS's shared file")
	}
	a.Bucket, a.Prefix, _ = strings.Cut(place, "/")
	a.Prefix = strings.TrimSuffix(a.Prefix, "/")
	if !validBucket(a.Bucket) {
		return a, fmt.Errorf("its bucket has no valid name")
	}
	if a.Prefix != "" && !validPrefix(a.Prefix) {
		return a, fmt.Errorf("its prefix is not made of letters, digits and _ . = @ - between single slashes")
	}
	if !asked {
		return a, nil
	}
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(setting, "=")
		if key != "endpoint" && key != "region" {
			return a, fmt.Errorf("it has a setting that is neither endpoint nor region")
		}
		if seen[key] {
			return a, fmt.Errorf("it gives the %s twice", key)
		}
		seen[key] = true
		if value, err = url.QueryUnescape(value); err != nil {
			return a, fmt.Errorf("its %s cannot be decoded", key)
		}
		if key == "region" {
			a.Region = value
			if !regionName.MatchString(value) {
				return a, fmt.Errorf("its region has no valid name")
			}
		} else if a.Endpoint, err = endpoint(value); err != nil {
			return a, err
		}
	}
	return a, nil
}

func validBucket(s string) bool {
	_, err := netip.ParseAddr(s)
	return bucketName.MatchString(s) && err != nil && !strings.Contains(s, "..") && !strings.Contains(s, ".-") &&
		!strings.Contains(s, "-.")
}

func validPrefix(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if !prefixName.MatchString(part) || strings.Trim(part, ".") == "" {
			return false
		}
	}
	return len(s) <= maxPrefix
}

// endpoint gives an endpoint in its one form.
func endpoint(s string) (string, error) {
	kind, rest, ok := strings.Cut(s, "://")
	if !ok || kind != "http" && kind != "https" {
		return "", fmt.Errorf("its endpoint does not begin with http:// or https://")
	}
	rest = strings.TrimSuffix(rest, "/")
	host, port := rest, ""
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.HasSuffix(rest, "]") {
		host, port = rest[:i], rest[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return "", fmt.Errorf("its endpoint has no valid port")
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		if !ok || err != nil || !ip.Is6() || ip.Zone() != "" {
			return "", fmt.Errorf("its endpoint has no valid host")
		}
		host = ip.String()
	} else if len(host) > 253 || !hostPattern.MatchString(host) {
		return "", fmt.Errorf("its endpoint has no valid host")
	}
	host = strings.ToLower(host)
	switch {
	case port != "":
		host = net.JoinHostPort(host, port)
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	return kind + "://" + host, nil
}

// String gives the address as Parse takes it.
func (a Address) String() string {
	s := scheme + a.Bucket
	if a.Prefix != "" {
		s += "/" + a.Prefix
	}
	sep := "?"
	if a.Endpoint != "" {
		s, sep = s+sep+"endpoint="+a.Endpoint, "&"
	}
	if a.Region != "" {
		s += sep + "region=" + a.Region
	}
	return s
}
