package echo

import "net/http"

type Context interface{ Error(error) }

type HandlerFunc func(Context) error

type MiddlewareFunc func(HandlerFunc) HandlerFunc

type Echo struct{}

func (*Echo) Use(ms ...MiddlewareFunc) {}

func WrapMiddleware(m func(http.Handler) http.Handler) MiddlewareFunc { panic(0) }
