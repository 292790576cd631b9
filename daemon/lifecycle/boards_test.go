package lifecycle

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestBoards: the Grafana board and the alert rules of the packages ask for metrics that there are.
func TestBoards(t *testing.T) {
	there := map[string]bool{}
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for _, c := range []prometheus.Collector{storeCollector{}, mountCollector{}, remoteCollector{}} {
		all := make(chan *prometheus.Desc, 100)
		c.Describe(all)
		close(all)
		for d := range all {
			there[name.FindStringSubmatch(d.String())[1]] = true
		}
	}
	for _, file := range []string{"../../packaging/grafana.json", "../../packaging/alerts.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		asked := regexp.MustCompile(`gpucr_fs_[a-z0-9_]+`).FindAllString(string(text), -1)
		if len(asked) == 0 {
			t.Errorf("%s asks for nothing", file)
		}
		for _, m := range asked {
			if !there[m] {
				t.Errorf("%s asks for %s, which nobody counts", file, m)
			}
		}
	}
	text, err := os.ReadFile("../../packaging/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &board); err != nil || len(board.Panels) == 0 {
		t.Errorf("the board has %d panels: %v", len(board.Panels), err)
	}
}
