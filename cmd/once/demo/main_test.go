package main

import (
	"os/exec"
	"strings"
	"testing"
)

// A newcomer waits for what this command links: neither drivers of servers nor clients of brokers are in it.
func TestLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	for _, module := range modules {
		for _, part := range []string{"jackc/", "go-sql-driver", "nats-io", "rabbitmq", "twmb/", "klauspost", "pierrec"} {
			if strings.Contains(module, part) {
				t.Fatalf("it links %s", module)
			}
		}
	}
	if len(modules) == 0 {
		t.Error("it links nothing: the test looks in the wrong place")
	}
}
