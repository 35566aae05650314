package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	gomodule "golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// prepared is a release in a clone of the repository.
type prepared struct {
	version  string
	modules  []*module // all of the repository, each after those that it requires
	clone    string
	from     string // what the repository has checked out: a branch, or else a commit
	released string // the commit with the tags
	next     string // the commit that development continues from
	tags     []string
}

func (r *prepared) branch() string     { return "release/" + r.version }
func (r *prepared) nextBranch() string { return "after/" + r.version }

// refs returns what the release adds to the repository.
func (r *prepared) refs() []string {
	refs := []string{"refs/heads/" + r.branch(), "refs/heads/" + r.nextBranch()}
	for _, tag := range r.tags {
		refs = append(refs, "refs/tags/"+tag)
	}
	return refs
}

// prepare makes the release in a new clone. The first commit is the release.
// The second one restores the replace directives, so that main builds from its
// own files, and opens a new section in the changelog.
func prepare(ctx context.Context, repository, clone, version string, day time.Time) (*prepared, error) {
	r := &prepared{version: version, clone: clone}
	var err error
	if r.modules, err = readModules(repository); err != nil {
		return nil, err
	}
	for _, m := range r.modules {
		if m.published() {
			r.tags = append(r.tags, m.tag(version))
		}
	}
	if err := r.checkRepository(ctx, repository); err != nil {
		return nil, err
	}
	if err := r.cloneFrom(ctx, repository); err != nil {
		return nil, err
	}
	changelog, err := os.ReadFile(r.file(changelogName))
	if err != nil {
		return nil, err
	}
	dated, reopened, err := dateChangelog(string(changelog), version, day)
	if err != nil {
		return nil, err
	}
	later, err := r.requireVersion()
	if err != nil {
		return nil, err
	}
	later[changelogName] = []byte(reopened)

	if err := r.write(changelogName, []byte(dated)); err != nil {
		return nil, err
	}
	if err := r.writeSums(ctx); err != nil {
		return nil, err
	}
	if r.released, err = r.commitAll(ctx, "Release "+version); err != nil {
		return nil, err
	}
	for _, tag := range r.tags {
		if _, err := git(ctx, r.clone, "tag", "--annotate", "--message", tag, tag, r.released); err != nil {
			return nil, err
		}
	}
	if _, err := git(ctx, r.clone, "checkout", "--quiet", "-b", r.nextBranch()); err != nil {
		return nil, err
	}
	for name, text := range later {
		if err := r.write(name, text); err != nil {
			return nil, err
		}
	}
	if r.next, err = r.commitAll(ctx, "Continue after "+version); err != nil {
		return nil, err
	}
	_, err = git(ctx, r.clone, "checkout", "--quiet", r.branch()) // for the proof
	return r, err
}

func checkVersion(version string) error {
	switch major := semver.Major(version); {
	case semver.Canonical(version) != version || version == "":
		return fmt.Errorf("%q is not a version: it has to look like v0.1.0 or v0.1.0-rc.1", version)
	case major != "v0" && major != "v1":
		return fmt.Errorf("%s requires module paths that end in /%s", version, major)
	}
	return nil
}

// checkRepository returns an error if the version cannot be released from HEAD.
func (r *prepared) checkRepository(ctx context.Context, repository string) error {
	changed, err := git(ctx, repository, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("commit or remove these changes first:\n%s", changed)
	}
	found, err := git(ctx, repository, append([]string{"for-each-ref", "--format=%(refname)"}, r.refs()...)...)
	if err != nil {
		return err
	}
	if ref, _, _ := strings.Cut(found, "\n"); ref != "" {
		return fmt.Errorf("%s exists already: choose another version, or delete the branches and tags of this one if they were not pushed", ref)
	}
	tags, err := git(ctx, repository, "tag", "--list", "--merged", "HEAD")
	if err != nil {
		return err
	}
	for tag := range strings.FieldsSeq(tags) {
		if semver.IsValid(tag) && semver.Compare(r.version, tag) < 0 {
			return fmt.Errorf("%s is not after %s, which HEAD contains", r.version, tag)
		}
	}
	return nil
}

// cloneFrom makes the clone. Its commits have the author and the signature that
// they would have in the repository.
func (r *prepared) cloneFrom(ctx context.Context, repository string) error {
	head, err := git(ctx, repository, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	r.from = head
	if branch, err := git(ctx, repository, "symbolic-ref", "--quiet", "--short", "HEAD"); err == nil {
		r.from = branch
	}
	if _, err := git(ctx, ".", "clone", "--quiet", "--shared", "--no-checkout", "--no-tags", repository, r.clone); err != nil {
		return err
	}
	for _, name := range []string{
		"user.name", "user.email", "user.signingkey", "commit.gpgsign", "tag.gpgsign",
		"gpg.format", "gpg.program", "gpg.ssh.program",
	} {
		value, err := git(ctx, repository, "config", "--get", name)
		if err != nil {
			continue // it is not set
		}
		if _, err := git(ctx, r.clone, "config", name, value); err != nil {
			return err
		}
	}
	_, err = git(ctx, r.clone, "checkout", "--quiet", "-B", r.branch(), head)
	return err
}

// requireVersion makes all modules require each other at the version, and
// removes the replace directives of those that are published. It returns the
// files that development continues with.
func (r *prepared) requireVersion() (later map[string][]byte, err error) {
	later = map[string][]byte{}
	for _, m := range r.modules {
		if err := m.requireSiblings(r.version); err != nil {
			return nil, err
		}
		later[m.file("go.mod")] = m.format()
		if m.sum != nil {
			later[m.file("go.sum")] = m.sum
		}
		if m.published() {
			if err := m.dropReplaces(); err != nil {
				return nil, err
			}
		}
		if err := r.write(m.file("go.mod"), m.format()); err != nil {
			return nil, err
		}
		if !m.published() {
			continue
		}
		if err := m.checkReleased(r.version); err != nil { // before the proof, which takes long to find it
			return nil, err
		}
	}
	return later, nil
}

// writeSums adds the siblings of each published module to its go.sum. They can
// be downloaded from nowhere yet, so their hashes are computed here, each after
// those of the modules that it requires.
func (r *prepared) writeSums(ctx context.Context) error {
	sums := map[string][]string{} // lines of go.sum, by module path
	for _, m := range r.modules {
		if !m.published() {
			continue
		}
		if siblings := m.siblings(); len(siblings) > 0 {
			var added []string
			for _, path := range siblings {
				added = append(added, sums[path]...)
			}
			if err := r.write(m.file("go.sum"), mergeSums(m.sum, added)); err != nil {
				return err
			}
		}
		var err error
		if sums[m.path], err = r.sumsOf(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// sumsOf returns the lines of go.sum about m. The go command hashes the files
// that git archives, so that is what is hashed here.
func (r *prepared) sumsOf(ctx context.Context, m *module) ([]string, error) {
	if _, err := git(ctx, r.clone, "add", "--all"); err != nil {
		return nil, err
	}
	tree, err := git(ctx, r.clone, "write-tree")
	if err != nil {
		return nil, err
	}
	archive, err := os.CreateTemp(filepath.Dir(r.clone), "module*.zip")
	if err != nil {
		return nil, err
	}
	defer os.Remove(archive.Name())
	version := gomodule.Version{Path: m.path, Version: r.version}
	err = zip.CreateFromVCS(archive, version, r.clone, tree, strings.TrimPrefix(m.dir, "."))
	if err := errors.Join(err, archive.Close()); err != nil {
		return nil, err
	}
	all, err := dirhash.HashZip(archive.Name(), dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return os.Open(r.file(m.file("go.mod")))
	})
	return []string{
		fmt.Sprintf("%s %s %s", m.path, r.version, all),
		fmt.Sprintf("%s %s/go.mod %s", m.path, r.version, mod),
	}, err
}

// mergeSums replaces the lines of go.sum about siblings by others, in the order
// of the go command.
func mergeSums(sum []byte, added []string) []byte {
	lines := map[gomodule.Version]string{}
	add := func(line string, keep bool) {
		if fields := strings.Fields(line); len(fields) == 3 && keep {
			lines[gomodule.Version{Path: fields[0], Version: fields[1]}] = strings.TrimSpace(line)
		}
	}
	for line := range strings.Lines(string(sum)) {
		path, _, _ := strings.Cut(line, " ")
		add(line, !isSibling(path))
	}
	for _, line := range added {
		add(line, true)
	}
	versions := make([]gomodule.Version, 0, len(lines))
	for v := range lines {
		versions = append(versions, v)
	}
	gomodule.Sort(versions)
	var b bytes.Buffer
	for _, v := range versions {
		fmt.Fprintln(&b, lines[v])
	}
	return b.Bytes()
}

// deliver puts the branches and the tags into the repository, all or none, and
// checks the release out.
func (r *prepared) deliver(ctx context.Context, repository string) error {
	fetch := []string{"fetch", "--quiet", "--atomic", "--no-tags", "--no-write-fetch-head", r.clone}
	for _, ref := range r.refs() {
		fetch = append(fetch, ref+":"+ref)
	}
	if _, err := git(ctx, repository, fetch...); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // an interrupt now would leave half of it
	_, err := git(ctx, repository, "checkout", "--quiet", r.branch())
	if err == nil {
		return nil
	}
	for _, ref := range r.refs() {
		_, deleted := git(ctx, repository, "update-ref", "-d", ref)
		err = errors.Join(err, deleted)
	}
	return err
}

// describe says what was made, and how to publish it or take it back.
func (r *prepared) describe(out io.Writer) {
	// The forge starts no workflow for a push of more than three tags. So the
	// tag that starts the release workflow is pushed by itself: the command's,
	// which requires the other modules.
	last := (&module{dir: "cmd/once"}).tag(r.version)
	first := slices.DeleteFunc(slices.Clone(r.tags), func(tag string) bool { return tag == last })
	fmt.Fprintf(out, `
Prepared %[1]s. Nothing is pushed. New in this repository:
  the branch %[2]s at %.12[3]s, the release, with %[4]d tags; it is checked out
  the branch %[5]s at %.12[6]s, which main continues from

1. Read both commits:
  git log --patch --reverse %[7]s..%[5]s
2. Push main and the modules. All or none of them arrive:
  git push --atomic origin %[5]s:main %[8]s
3. Push the tag of the command, which starts the release workflow:
  git push origin %[9]s
4. Clean up:
  git checkout main && git pull && git branch -D %[2]s %[5]s

To take it back instead, while nothing is pushed:
  git checkout %[7]s && git branch -D %[2]s %[5]s && git tag -d %[10]s
`, r.version, r.branch(), r.released, len(r.tags), r.nextBranch(), r.next, r.from, strings.Join(first, " "), last, strings.Join(r.tags, " "))
}

func (r *prepared) file(name string) string { return filepath.Join(r.clone, filepath.FromSlash(name)) }

func (r *prepared) write(name string, text []byte) error {
	return os.WriteFile(r.file(name), text, 0o644)
}

func (r *prepared) commitAll(ctx context.Context, message string) (string, error) {
	if _, err := git(ctx, r.clone, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := git(ctx, r.clone, "commit", "--quiet", "--message", message); err != nil {
		return "", err
	}
	return git(ctx, r.clone, "rev-parse", "HEAD")
}
