package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/effectively-once/once/cmd/once/internal/target"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the long text of once completion --help.
func (completionCommand) Help() string {
	return `
Examples:
  source <(once completion bash)    # also in ~/.bashrc
  source <(once completion zsh)     # also in ~/.zshrc, after compinit
  once completion fish | source     # also in ~/.config/fish/config.fish`
}

// scripts call the command with the words typed so far. The last word is
// incomplete.
var scripts = map[string]string{
	"bash": `_once() {
	local IFS=$'\n'
	COMPREPLY=($(once complete-words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _once once
`,
	"zsh": `_once() {
	local -a found
	found=("${(@f)$(once complete-words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	compadd -a found
}
compdef _once once
`,
	"fish": `complete -c once -f -a '(once complete-words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
`,
}

// Run prints the script.
func (c *completionCommand) Run() error {
	_, err := os.Stdout.WriteString(scripts[c.Shell])
	return err
}

type completeCommand struct {
	Words []string `arg:"" optional:"" passthrough:"all"`
}

// Run prints the completions of the last word, one per line.
func (c *completeCommand) Run(parser *kong.Kong) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for _, word := range candidates(parser.Model.Node, words) {
		fmt.Println(word)
	}
	return nil
}

func candidates(at *kong.Node, words []string) (found []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	done, last := words[:len(words)-1], words[len(words)-1]
	var flag *kong.Flag // whose value comes next
	position := 0
	for _, word := range done {
		if flag != nil {
			flag = nil
			continue
		}
		if name, isFlag := strings.CutPrefix(word, "-"); isFlag {
			flag = valued(at, strings.TrimPrefix(name, "-"))
			continue
		}
		if child := childOf(at, word); child != nil {
			at = child
		} else {
			position++
		}
	}
	var all []string
	switch {
	case flag != nil:
		all = valuesOf(flag.Value)
	case strings.HasPrefix(last, "-"):
		for _, group := range at.AllFlags(true) {
			for _, f := range group {
				all = append(all, "--"+f.Name)
			}
		}
	case len(at.Children) > 0:
		for _, child := range at.Children {
			if !child.Hidden {
				all = append(all, child.Name)
			}
		}
	case position < len(at.Positional):
		all = valuesOf(at.Positional[position])
	}
	for _, word := range all {
		if strings.HasPrefix(word, last) {
			found = append(found, word)
		}
	}
	slices.Sort(found)
	return found
}

func childOf(at *kong.Node, name string) *kong.Node {
	for _, child := range at.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}

// valued returns the flag with this name if it takes its value from the next
// word.
func valued(at *kong.Node, name string) *kong.Flag {
	for _, group := range at.AllFlags(false) {
		for _, f := range group {
			if !f.IsBool() && (f.Name == name || string(f.Short) == name) {
				return f
			}
		}
	}
	return nil
}

// valuesOf returns the known values of a flag: its choices, or the names of
// targets.
func valuesOf(v *kong.Value) (all []string) {
	if v.Enum != "" {
		return v.EnumSlice()
	}
	if v.Name == "target" {
		if f, err := target.Load(); err == nil {
			return f.Names()
		}
	}
	return nil
}
