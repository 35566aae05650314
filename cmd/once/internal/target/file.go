package target

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/effectively-once/once/cmd/once/internal/secret"
)

// File stores the named targets in the user's configuration directory.
type File struct {
	Current string           `json:"current,omitempty"`
	Targets map[string]Named `json:"targets"`

	path string
}

// Named is a target in the File.
type Named struct {
	URL string `json:"url"` // with ${NAME} as given
}

// ErrName is wrapped by errors about the choice of a target.
var ErrName = errors.New("no target")

// ErrNoneChosen is wrapped by the error for choosing no target. It wraps
// ErrName.
var ErrNoneChosen = fmt.Errorf("%w is chosen", ErrName)

// Load reads the file. A missing file is empty.
func Load() (*File, error) {
	path, err := filePath()
	if err != nil {
		return nil, err
	}
	f := &File{Targets: map[string]Named{}, path: path}
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(text, f)
	}
	if err != nil {
		return nil, fmt.Errorf("the targets file %s: %w", f.path, err)
	}
	if f.Targets == nil {
		f.Targets = map[string]Named{}
	}
	return f, nil
}

func filePath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("there is no directory for the targets file: %w", err)
	}
	return filepath.Join(dir, "once", "targets.json"), nil
}

// Path returns the path of the file.
func (f *File) Path() string { return f.path }

// Names returns the sorted names of the targets.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Targets)) }

// save replaces the file atomically. Only its owner can read it.
func (f *File) save() error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(f.path), "targets-*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = temp.Write(append(text, '\n'))
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), f.path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(temp.Name()))
	}
	return err
}

// Variable is the environment variable that selects a target.
const Variable = "ONCE_TARGET"

// Choose returns the URL to open and the name of its target, if it has one. It
// prefers the url, then the name, then the environment variable, then the
// current target.
func Choose(url, name string) (from, chosen string, err error) {
	if url != "" {
		if name != "" {
			return "", "", fmt.Errorf("%w: use either --url or --target", ErrName)
		}
		return url, "", nil
	}
	f, err := Load()
	if err != nil {
		return "", "", err
	}
	if name == "" {
		name = os.Getenv(Variable)
	}
	if name == "" {
		name = f.Current
	}
	if name == "" {
		return "", "", fmt.Errorf("%w: give --target or --url, or see once context set --help", ErrNoneChosen)
	}
	named, ok := f.Targets[name]
	if !ok {
		return "", "", fmt.Errorf("%w is named %q: %s", ErrName, name, f.known())
	}
	return named.URL, name, nil
}

func (f *File) known() string {
	if len(f.Targets) == 0 {
		return "none is set, see once context set --help"
	}
	return "there are " + strings.Join(f.Names(), ", ")
}

// HasPassword reports whether a URL contains a secret that is not a variable.
func HasPassword(from string) bool {
	user, _ := userinfo(from)
	_, password, _ := strings.Cut(user, ":")
	return password != "" && !whole.MatchString(password) || new(secret.Set).Hide(from) != from
}
