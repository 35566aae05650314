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

// File is where named targets are kept, below the user's own directory of configuration.
type File struct {
	Current string           `json:"current,omitempty"`
	Targets map[string]Named `json:"targets"`

	path string
}

// Named is a target in the File.
type Named struct {
	URL string `json:"url"` // with its ${NAME} as they were given
}

// ErrName is wrapped by what is wrong with the choice of a target.
var ErrName = errors.New("no target")

// ErrNoneChosen is wrapped by the error for no choice at all. It wraps ErrName.
var ErrNoneChosen = fmt.Errorf("%w is chosen", ErrName)

// Load reads the file. One that is missing is empty.
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
		return nil, fmt.Errorf("the file of targets, %s: %w", f.path, err)
	}
	if f.Targets == nil {
		f.Targets = map[string]Named{}
	}
	return f, nil
}

func filePath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("there is no place for the file of targets: %w", err)
	}
	return filepath.Join(dir, "once", "targets.json"), nil
}

// Path is where the file is.
func (f *File) Path() string { return f.path }

// Names are those of the targets, sorted.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Targets)) }

// save replaces the file as a whole. Nobody else can read it.
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

// Variable is the environment's variable that chooses a target.
const Variable = "ONCE_TARGET"

// Choose returns the URL that is to be opened, and the name of its target, if it has one: the url if there is one, then
// the name, then that in the environment, then the current one of the File.
func Choose(url, name string) (from, chosen string, err error) {
	if url != "" {
		if name != "" {
			return "", "", fmt.Errorf("%w: --url and --target are two", ErrName)
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

// HasPassword reports whether there is a secret in a URL as it stands, so not by way of a variable.
func HasPassword(from string) bool {
	user, _ := userinfo(from)
	_, password, _ := strings.Cut(user, ":")
	return password != "" && !whole.MatchString(password) || new(secret.Set).Hide(from) != from
}
