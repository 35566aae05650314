package console

func (v *view) overview() {
	v.render(200, "overview", page{Title: "Overview", Nav: "overview"})
}
