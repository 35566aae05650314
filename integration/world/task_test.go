package world

import (
	"encoding/json"
	"os"
	"runtime"
	"testing"
)

// TestTask does what the command world asks for. Only a binary of tests may play
// worlds.
func TestTask(t *testing.T) {
	text := os.Getenv(TaskVariable)
	if text == "" {
		t.Skip("the command world runs this")
	}
	runtime.GOMAXPROCS(1) // so that a seed has one history
	var args []string
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		t.Fatal(err)
	}
	task, err := ParseTask(args)
	if err != nil {
		t.Fatal(err)
	}
	os.Exit(task.Run(t))
}
