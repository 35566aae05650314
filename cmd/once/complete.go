package main

import (
	"context"
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
	local word
	COMPREPLY=()
	while IFS= read -r word; do
		COMPREPLY+=("$word")
	done < <(once complete-line "$COMP_WORDBREAKS" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -o default -F _once once
`,
	"zsh": `_once() {
	local -a found
	found=("${(@f)$(once complete-words -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
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
func (c *completeCommand) Run(ctx context.Context, parser *kong.Kong) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for _, word := range candidates(ctx, parser.Model.Node, words) {
		fmt.Println(word)
	}
	return nil
}

type completeLine struct {
	Breaks string `arg:""`
	Line   string `arg:""`
}

// Run prints the completions of the end of a line as bash takes them.
func (c *completeLine) Run(ctx context.Context, parser *kong.Kong) error {
	line := splitLine(c.Line, c.Breaks)
	for _, word := range candidates(ctx, parser.Model.Node, line.words[1:]) {
		if text, ok := line.replace(word); ok {
			fmt.Println(text)
		}
	}
	return nil
}

func candidates(ctx context.Context, at *kong.Node, words []string) (found []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	done, last := words[:len(words)-1], words[len(words)-1]
	var flag *kong.Flag // whose value comes next
	given := make(map[string]string)
	position, onlyArgs := 0, false
	for _, word := range done {
		name, isFlag := strings.CutPrefix(word, "-")
		switch {
		case flag != nil:
			given[flag.Name] = word
			flag = nil
		case onlyArgs || !isFlag:
			if child := childOf(at, word); child != nil {
				at = child
			} else {
				position++
			}
		case word == "--":
			onlyArgs = true
		default:
			name, value, _ := strings.Cut(strings.TrimPrefix(name, "-"), "=")
			flag = valued(at, name)
			if flag != nil && strings.Contains(word, "=") {
				given[flag.Name] = value
				flag = nil
			}
		}
	}
	before := "" // what is in the same word
	if name, value, joined := strings.Cut(last, "="); flag == nil && !onlyArgs && joined && strings.HasPrefix(name, "--") {
		if flag = valued(at, name[2:]); flag == nil {
			return nil
		}
		before, last = name+"=", value
	}
	from := storeFlags{Target: chosen(given["target"]), URL: chosen(given["url"])}
	var all []string
	switch {
	case flag != nil:
		all = valuesOf(ctx, flag.Value, from)
	case strings.HasPrefix(last, "-") && !onlyArgs:
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
		all = valuesOf(ctx, at.Positional[position], from)
	}
	for _, word := range all {
		if strings.HasPrefix(word, last) {
			found = append(found, before+word)
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

// valued returns the flag with this name if it takes a value.
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

// valuesOf returns the known values of a flag or an argument: its choices, or what
// its tag complete says.
func valuesOf(ctx context.Context, v *kong.Value, from storeFlags) []string {
	if v.Enum != "" {
		return v.EnumSlice()
	}
	switch kind := v.Tag.Get("complete"); kind {
	case "":
		return nil
	case "target":
		f, err := target.Load()
		if err != nil {
			return nil
		}
		return f.Names()
	default:
		return stored(ctx, stores[kind], from.open)
	}
}

// typedLine is a line of bash up to the cursor.
type typedLine struct {
	words []string // at least two; the last one is incomplete
	kept  int      // bytes of the last word that bash does not replace
	quote byte     // in which the last word ends; 0: none
}

// splitLine splits a line into words. breaks are the characters at which bash
// begins to replace within a word.
func splitLine(text, breaks string) typedLine {
	var l typedLine
	var word []byte
	begun := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case l.quote == '\'' && c != '\'', l.quote == '"' && c != '"' && c != '\\':
			word = append(word, c)
		case l.quote != 0 && c == l.quote:
			l.quote = 0
		case c == '\\':
			if i++; i < len(text) {
				word = append(word, text[i])
			}
			begun = true
		case c == '\'', c == '"':
			l.quote, begun = c, true
		case c == ' ', c == '\t':
			if begun {
				l.words = append(l.words, string(word))
			}
			word, begun, l.kept = nil, false, 0
		default:
			word, begun = append(word, c), true
			if strings.IndexByte(breaks, c) >= 0 {
				l.kept = len(word)
			}
		}
	}
	l.words = append(l.words, string(word))
	if len(l.words) == 1 {
		l.words = append(l.words, "")
	}
	return l
}

// replace returns what bash puts in the place of the last word. bash runs what is
// in it, so a name must not be more than a name there. ok is false if it cannot be
// written in the quotes that are open.
func (l typedLine) replace(word string) (text string, ok bool) {
	word = word[min(l.kept, len(word)):]
	if l.quote != 0 {
		return word, !strings.ContainsAny(word, "'\"\\$`!")
	}
	var b strings.Builder
	for _, r := range word {
		plain := r >= 0x80 || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !plain && !strings.ContainsRune("_-+=:,./@%", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String(), true
}
