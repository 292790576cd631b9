package service

// reads are the operations that change nothing in a store. They do where it cannot be written.
var reads = map[string]bool{
	"ls": true, "names": true, "entries": true, "info": true, "du": true,
	"diff": true, "export": true, "verify": true, "check": true, "stats": true,
	"profile-show": true, "warmup": true, "ls-remote": true, "verify-remote": true,
}

// Reads says whether the operation changes nothing in the store.
func (o *Op[Req, Res]) Reads() bool { return reads[o.name] }
