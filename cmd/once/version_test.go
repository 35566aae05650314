package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestVersionNamesTheModuleVersionAndTheCommit(t *testing.T) {
	built := runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	commit := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "9e0e820"}, {Key: "vcs.modified", Value: modified}}
	}
	for _, c := range []struct {
		name string
		info *debug.BuildInfo
		want string
	}{
		{"go install of a release", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "v0.1.0"},
		{"go build in a checkout", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20261124"}, Settings: commit("false")}, "v0.1.1-0.20261124 9e0e820"},
		{"with changes", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: commit("true")}, "(devel) 9e0e820-dirty"},
		{"without a repository", &debug.BuildInfo{}, "(devel)"},
		{"not by the go command", nil, "(devel)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := versionOf(c.info).String(); got != c.want+" "+built {
				t.Errorf("got %q, want %q", got, c.want+" "+built)
			}
		})
	}
}
