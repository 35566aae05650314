package world

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// TaskVariable has the arguments of the command world for its binary, as JSON.
const TaskVariable = "ONCE_WORLD"

// Binary is a compiled package world. It is a binary of tests, because only these
// have bubbles of fake time and may seed crypto/rand.
type Binary struct{ path string }

// Build compiles this package in the tree below root, as a file of dir.
func Build(ctx context.Context, root, dir, name string) (*Binary, error) {
	b := &Binary{filepath.Join(dir, name)}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", b.path, "./integration/world")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the world does not compile: %w\n%s", err, output)
	}
	return b, nil
}

// Command returns the command that does a task.
func (b *Binary) Command(ctx context.Context, args []string) (*exec.Cmd, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, b.path, "-test.run=^TestTask$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), TaskVariable+"="+string(text))
	return cmd, nil
}
