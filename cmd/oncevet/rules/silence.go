package rules

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// nolint is the comment by which linters are told to be silent. The one for
// golangci-lint has the same form, so that one comment is enough for both.
var nolint = regexp.MustCompile(`^//\s?nolint:([\w,\- ]+?)\s*(//.*)?$`)

// silence is a comment that silences rules on its line and the next.
type silence struct {
	rules  []string
	reason bool
}

// silenced reports whether a comment silences a rule at a position, and whether
// it says why.
func (x *index) silenced(pos token.Pos, rule string) (reason, silenced bool) {
	s, ok := x.silences[x.fileOf(pos)][x.fset.Position(pos).Line]
	if !ok || !slices.Contains(s.rules, rule) && !slices.Contains(s.rules, "oncevet") {
		return false, false
	}
	return s.reason, true
}

// silencesOf returns the comments of a file that silence, by the lines that they
// are about. A comment on a line of its own is about the next line.
func (x *index) silencesOf(f *ast.File) map[int]silence {
	lines := map[int]silence{}
	code := map[int]bool{} // lines on which code begins or ends
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.Comment, *ast.CommentGroup:
			return false
		}
		code[x.fset.Position(n.Pos()).Line], code[x.fset.Position(n.End()).Line] = true, true
		return true
	})
	for _, group := range f.Comments {
		for _, c := range group.List {
			m := nolint.FindStringSubmatch(c.Text)
			if m == nil {
				continue
			}
			s := silence{reason: strings.Trim(m[2], "/ \t") != ""}
			for name := range strings.SplitSeq(m[1], ",") {
				s.rules = append(s.rules, strings.TrimSpace(name))
			}
			line := x.fset.Position(c.Pos()).Line
			if !code[line] {
				line = x.fset.Position(group.End()).Line + 1
			}
			lines[line] = s
		}
	}
	return lines
}
