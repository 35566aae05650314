package gin

import "net/http"

type ResponseWriter interface{ http.ResponseWriter }

type Context struct {
	Request *http.Request
	Writer  ResponseWriter
}

func (*Context) Next()  {}
func (*Context) Abort() {}

type HandlerFunc func(*Context)

func WrapH(h http.Handler) HandlerFunc { panic(0) }
