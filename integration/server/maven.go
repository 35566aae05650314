//go:build linux

package server

import (
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// debianJava is not the first java of the PATH, which the account of a server may
// not be allowed to run.
const debianJava = "/usr/bin/java"

// mavenCache returns the directory of the jars that the pom.xml in a folder of
// files names, and all that they need, in a cache of programs. Maven fetches them, and their sums have to be those of checksums.txt:
// to renew it, run sha256sum on the jars.
func mavenCache(ctx context.Context, files embed.FS, folder string) (string, error) {
	sums, err := files.ReadFile(path.Join(folder, "checksums.txt"))
	if err != nil {
		return "", err
	}
	pom, err := files.ReadFile(path.Join(folder, "pom.xml"))
	if err != nil {
		return "", err
	}
	return cached(folder, sums, func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), pom, 0o644); err != nil {
			return err
		}
		if err := mavenCopy(ctx, dir); err != nil {
			return err
		}
		return checkSums(dir, string(sums))
	})
}

func mavenCopy(ctx context.Context, dir string) error {
	mvn, err := findProgram("mvn")
	if err != nil {
		return err
	}
	const copyJars = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
	cmd := exec.CommandContext(ctx, mvn, "--quiet", "--batch-mode", copyJars, "-DoutputDirectory="+dir, "-DincludeScope=runtime")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w\n%s", err, out)
	}
	return nil
}

// checkSums returns an error unless the directory has the jars of a list, as
// sha256sum prints it, and no others.
func checkSums(dir, list string) error {
	found, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil {
		return err
	}
	var is []string
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		is = append(is, fmt.Sprintf("%x  %s", sha256.Sum256(text), filepath.Base(file)))
	}
	want := strings.Split(strings.TrimSpace(list), "\n")
	slices.Sort(is)
	slices.Sort(want)
	if !slices.Equal(is, want) {
		return fmt.Errorf("maven fetched other files than checksums.txt lists: %s", difference(is, want))
	}
	return nil
}

// difference returns the lines that only one of two lists has.
func difference(a, b []string) string {
	var only []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			only = append(only, "fetched "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			only = append(only, "listed "+line)
		}
	}
	return strings.Join(only, ", ")
}
