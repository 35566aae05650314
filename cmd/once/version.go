package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the version, the commit, the Go release and the platform.
func (c versionCommand) Run() error {
	info, _ := debug.ReadBuildInfo()
	v := versionOf(info)
	if c.JSON {
		return printJSON(v)
	}
	_, err := fmt.Println("once", v)
	return err
}

// programVersion identifies a build of the command.
type programVersion struct {
	Version  string `json:"version"`            // of the module: v0.1.0, a pseudo-version, or (devel)
	Revision string `json:"revision,omitempty"` // of the checkout that it was built in
	Dirty    bool   `json:"dirty,omitempty"`    // the checkout had changes that were not committed
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// versionOf returns what the go command stamped into the binary: the module's
// version, and the commit if the binary was built in a checkout.
func versionOf(info *debug.BuildInfo) programVersion {
	v := programVersion{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Dirty = s.Value == "true"
		}
	}
	return v
}

func (v programVersion) String() string {
	revision := ""
	if v.Revision != "" {
		revision = " " + v.Revision
		if v.Dirty {
			revision += "-dirty"
		}
	}
	return fmt.Sprintf("%s%s %s %s", v.Version, revision, v.Go, v.Platform)
}
