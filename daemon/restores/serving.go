package restores

import (
	"encoding/json"
	"fmt"
)

// Serving says how the memory of a restore is served. It goes to successors.
type Serving struct {
	// ID names the restore, for the command that waits for it; unique.
	ID string `json:"id"`
	// Checkpoint is the name, tag or ID of a checkpoint.
	Checkpoint string `json:"checkpoint"`
	// Rate bounds what is fetched ahead of demands, in bytes a second; 0 is no bound.
	Rate int64 `json:"rate,omitempty"`
	// RecordGPU is feed.Options'.
	RecordGPU bool `json:"record_gpu,omitempty"`
	// Copies is feed.Options'.
	Copies int `json:"copies,omitempty"`
}

// encode and Decode put a restore's description on a successor's command line.
func encode(s Serving) (string, error) {
	b, err := json.Marshal(s)
	return string(b), err
}

func Decode(spec string) (s Serving, err error) {
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return s, fmt.Errorf("read the restore's description: %w", err)
	}
	return s, nil
}
