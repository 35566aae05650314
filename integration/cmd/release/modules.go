package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// rootPath is the path of the root module, and the prefix of all others.
const rootPath = "github.com/effectively-once/once"

// published lists the directories of the modules that users require. A new
// module is added either here or to unpublished.
var published = []string{
	".",
	"broker/eventhubsbroker",
	"broker/kafkabroker",
	"broker/natsbroker",
	"broker/pubsubbroker",
	"broker/rabbitbroker",
	"broker/redisbroker",
	"broker/servicebusbroker",
	"broker/sqsbroker",
	"cmd/once",
	"cmd/oncevet",
	"grpconce",
	"httponce",
	"otelonce",
	"store/cosmosstore",
	"store/dynamostore",
	"store/natsstore",
	"store/pgstore",
	"store/redisstore",
	"store/tablestore",
}

// unpublished lists the directories of modules that get no tag, and why. They
// keep their replace directives.
var unpublished = map[string]string{
	"bench":          "measurements",
	"bench/peers":    "measurements of other libraries",
	"examples":       "programs to read and to copy",
	"integration":    "proofs on real servers, and tools of this repository",
	"observe/alerts": "rules and a dashboard to copy, and their tests",
}

// module is a module of this repository.
type module struct {
	dir  string // from the root, "." for the root
	path string
	mod  *modfile.File
	sum  []byte // go.sum, nil if there is none
}

func (m *module) published() bool { return slices.Contains(published, m.dir) }

// file returns the path of a file of m from the root.
func (m *module) file(name string) string { return filepath.ToSlash(filepath.Join(m.dir, name)) }

// tag returns the tag by which the go command finds version of m.
func (m *module) tag(version string) string { return m.file(version) }

// siblings returns the modules of this repository that m requires.
func (m *module) siblings() []string {
	var paths []string
	for _, r := range m.mod.Require {
		if isSibling(r.Mod.Path) {
			paths = append(paths, r.Mod.Path)
		}
	}
	return paths
}

func isSibling(path string) bool { return path == rootPath || strings.HasPrefix(path, rootPath+"/") }

// readModules returns the modules below root, each after those that it
// requires.
func readModules(root string) ([]*module, error) {
	byPath := map[string]*module{}
	listed := map[string]bool{} // directories, false until their module is found
	for _, dir := range slices.Concat(published, slices.Collect(maps.Keys(unpublished))) {
		if _, twice := listed[dir]; twice {
			return nil, fmt.Errorf("%s is listed as published and as unpublished", dir)
		}
		listed[dir] = false
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() || entry.Name() != "go.mod":
			return nil
		}
		m, err := readModule(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if _, ok := listed[m.dir]; !ok {
			return fmt.Errorf("the module in %s is listed neither as published nor as unpublished: add it to integration/cmd/release/modules.go", m.dir)
		}
		byPath[m.path], listed[m.dir] = m, true
		return nil
	})
	if err != nil {
		return nil, err
	}
	for dir, found := range listed {
		if !found {
			return nil, fmt.Errorf("integration/cmd/release/modules.go lists %s, where there is no module", dir)
		}
	}
	return inOrder(byPath)
}

func readModule(root, dir string) (*module, error) {
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		return nil, err
	}
	m := &module{dir: filepath.ToSlash(rel)}
	name := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if m.mod, err = modfile.Parse(name, text, nil); err != nil {
		return nil, err
	}
	m.path = m.mod.Module.Mod.Path
	if want := strings.TrimSuffix(rootPath+"/"+m.dir, "/."); m.path != want {
		return nil, fmt.Errorf("%s declares the module %s instead of %s", name, m.path, want)
	}
	m.sum, err = os.ReadFile(filepath.Join(dir, "go.sum"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return m, err
}

// inOrder sorts modules, each after those that it requires.
func inOrder(byPath map[string]*module) ([]*module, error) {
	var sorted []*module
	const begun, ended = 1, 2
	state := map[string]int{}
	var visit func(path, from string) error
	visit = func(path, from string) error {
		m := byPath[path]
		switch {
		case m == nil:
			return fmt.Errorf("%s requires %s, which is not in this repository", from, path)
		case state[path] == begun:
			return fmt.Errorf("%s and %s require each other", from, path)
		case state[path] == ended:
			return nil
		}
		state[path] = begun
		for _, sibling := range m.siblings() {
			if required := byPath[sibling]; required != nil && m.published() && !required.published() {
				return fmt.Errorf("%s is published and requires %s, which is not", path, sibling)
			}
			if err := visit(sibling, path); err != nil {
				return err
			}
		}
		state[path] = ended
		sorted = append(sorted, m)
		return nil
	}
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		if err := visit(path, ""); err != nil {
			return nil, err
		}
	}
	return sorted, nil
}

// requireSiblings sets the version of all siblings in go.mod.
func (m *module) requireSiblings(version string) error {
	for _, path := range m.siblings() {
		if err := m.mod.AddRequire(path, version); err != nil {
			return err
		}
	}
	return nil
}

// dropReplaces removes the replace directives of siblings from go.mod.
func (m *module) dropReplaces() error {
	for _, r := range slices.Clone(m.mod.Replace) {
		if !isSibling(r.Old.Path) {
			continue // checkReleased refuses it
		}
		if err := m.mod.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	return nil
}

// format returns the text of go.mod.
func (m *module) format() []byte {
	m.mod.Cleanup()
	return modfile.Format(m.mod.Syntax)
}

// checkReleased returns an error unless go.mod can be released as version. The
// go command ignores the replace and exclude directives of required modules,
// and go install refuses a module that has any.
func (m *module) checkReleased(version string) error {
	if len(m.mod.Replace) > 0 {
		return fmt.Errorf("go.mod of %s replaces %s: go install refuses that, and users would not get the replacement", m.path, m.mod.Replace[0].Old.Path)
	}
	if len(m.mod.Exclude) > 0 {
		return fmt.Errorf("go.mod of %s excludes %s: go install refuses that, and users could get it", m.path, m.mod.Exclude[0].Mod)
	}
	for _, r := range m.mod.Require {
		if isSibling(r.Mod.Path) && r.Mod.Version != version {
			return fmt.Errorf("go.mod of %s requires %s, not %s", m.path, r.Mod, version)
		}
	}
	return nil
}
