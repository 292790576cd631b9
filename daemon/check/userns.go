package check

import (
	"path"
	"strings"
)

// userNamespace says what a restore into a user namespace needs of the host. Its tasks open images and a userfaultfd
// from within that namespace.
func userNamespace(s *subject, r *Section) {
	found := false
	for _, e := range s.c.Entries() {
		found = found || strings.HasPrefix(path.Base(e.Path), "userns-") && strings.HasSuffix(e.Path, ".img")
	}
	if !found {
		return
	}
	r.fact("a user namespace: criu itself restores it from a mount made with --allow-other only")
	switch s.Host.UserFaults {
	case "":
		r.fact("whether user namespaces may use userfaultfd is not known")
	case "0":
		r.problem(
			"user namespaces may not use userfaultfd, which restore and lazy-pages need (hint: sysctl " +
				"vm.unprivileged_userfaultfd=1)",
		)
	}
}
