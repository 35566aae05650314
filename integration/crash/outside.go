//go:build linux

package crash

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/effectively-once/once"
)

// outside is another system: a directory. It does what it is asked, as often as
// it is asked, and can be asked what it has done. Its effects survive the
// process that asked for them.
type outside struct{ dir string }

// add makes another effect of an ID, with a mark to recognise it.
func (o outside) add(id, mark string) error {
	f, err := os.OpenFile(o.file(id), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(mark + "\n")
	return errors.Join(err, f.Close())
}

// effects returns the marks of an ID, in order.
func (o outside) effects(id string) ([]string, error) {
	text, err := os.ReadFile(o.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// addOnce honours an idempotency key: it makes the first effect of a key, and
// then always returns its mark.
func (o outside) addOnce(key once.Key, mark string) (first string, err error) {
	name := filepath.Join(o.dir, "key-"+key.String())
	draft := name + "-" + mark
	if err := os.WriteFile(draft, []byte(mark), 0o600); err != nil {
		return "", err
	}
	defer os.Remove(draft)
	if err := os.Link(draft, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	text, err := os.ReadFile(name)
	return string(text), err
}

// addedOnce returns the mark that was added with a key, or "".
func (o outside) addedOnce(key once.Key) (string, error) {
	text, err := os.ReadFile(filepath.Join(o.dir, "key-"+key.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// marksOf returns the marks that were added with a key.
func marksOf(added string) []string {
	if added == "" {
		return nil
	}
	return []string{added}
}

func (o outside) file(id string) string { return filepath.Join(o.dir, id) }
