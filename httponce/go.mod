module github.com/effectively-once/once/httponce

go 1.24.0

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/effectively-once/once v0.0.0
	github.com/gowebpki/jcs v1.0.2
)

replace github.com/effectively-once/once => ../
