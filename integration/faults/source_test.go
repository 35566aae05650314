package faults

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestAdaptersWriteNoClock looks, in the packages that talk to a database, for
// a time of the client that becomes a number or a text, which it must in order
// to be sent: the columns are numbers. Measuring durations and setting
// deadlines is fine. Package wrongclock tests what a wrong clock does to a
// whole process.
func TestAdaptersWriteNoClock(t *testing.T) {
	files := 0
	for _, dir := range []string{"store/sqlstore", "store/pgstore", "store/sqlschema"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			return noClock(t, path)
		})
		must(t, err)
	}
	if files < 20 {
		t.Errorf("only %d files were read", files)
	}
}

// written lists the methods of time.Time that return a number or a text.
var written = []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Format", "AppendFormat", "MarshalText", "MarshalBinary", "MarshalJSON"}

func noClock(t *testing.T, path string) error {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, path, nil, 0)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains(written, call.Sel.Name) {
			return true
		}
		switch from := call.X.(type) {
		case *ast.Ident:
			if from.Name == "time" || from.Name == "name" || from.Name == "produced" {
				return true // the functions time.UnixMicro, which reads a column, name.Format, of a UUID, and a message's own time
			}
		case *ast.SelectorExpr:
			if strings.EqualFold(from.Sel.Name, "Created") || from.Sel.Name == "Updated" {
				return true // of a record, which has the database's time
			}
		}
		t.Errorf("%v writes a time of the client: the database's decides", positions.Position(call.Pos()))
		return true
	})
	return nil
}
