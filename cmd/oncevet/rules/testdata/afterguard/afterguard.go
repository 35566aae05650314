// Package afterguard has handlers that go on.
package afterguard

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
)

type shop struct {
	store *sqlstore.Store
	op    *once.Operation[string]
	opts  *httponce.Options
}

func (s *shop) tenant(*http.Request) (string, error)               { return "", nil }
func (s *shop) work(context.Context, once.Key) (string, error)     { return "", nil }
func (s *shop) rows(context.Context, *sql.Tx, *http.Request) error { return nil }
func (s *shop) check(*http.Request) error                          { return nil }
func (s *shop) pay(w http.ResponseWriter, r *http.Request)         { fmt.Fprint(w, "paid") }

func (s *shop) around(next http.Handler) http.Handler {
	guard := httponce.Middleware(s.store, s.tenant, s.opts)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Shop", "1")
		guard.ServeHTTP(w, r)
		log.Println("served")
		next.ServeHTTP(w, r) // want `afterguard: next.ServeHTTP comes after the guard has responded`
	})
}

func (s *shop) writes(w http.ResponseWriter, r *http.Request) {
	httponce.Handler(s.store, s.tenant, http.HandlerFunc(s.pay), nil).ServeHTTP(w, r)
	fmt.Fprintln(w, "thank you") // want `afterguard: fmt.Fprintln comes after the guard has responded`
}

func (s *shop) right(w http.ResponseWriter, r *http.Request) {
	httponce.Handler(s.store, s.tenant, http.HandlerFunc(s.pay), nil).ServeHTTP(w, r)
	log.Println("served")
}

func (s *shop) handlers() {
	_ = httponce.Handler(s.store, s.tenant, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.check(r); err != nil {
			httponce.NotDone(w)
			http.Error(w, err.Error(), http.StatusBadRequest) // want `afterguard: the handler goes on after http.Error: a return is missing`
		}
		fmt.Fprint(w, "paid")
	}), nil)
	_ = httponce.Handler(s.store, s.tenant, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.check(r); err != nil {
			httponce.NotDone(w)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if r.URL.Path == "/" {
			httponce.NotDone(w) // and the response comes below
		}
		fmt.Fprint(w, "paid")
	}), nil)
	_ = httponce.HandlerTx(s.store, s.tenant, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		if err := s.check(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest) // want `afterguard: the handler goes on after http.Error: a return is missing`
		}
		return s.rows(r.Context(), tx, r)
	}, nil)
}

func refuse(w http.ResponseWriter, status int, why string) {
	w.WriteHeader(status)
	fmt.Fprint(w, why)
}

func (s *shop) refuses(w http.ResponseWriter, r *http.Request) {
	if err := s.check(r); err != nil {
		refuse(w, http.StatusBadRequest, err.Error()) // want `afterguard: the handler goes on after refuse: a return is missing`
	}
	if r.ContentLength > 1000 {
		refuse(w, http.StatusRequestEntityTooLarge, "shorter, please")
		return
	}
	if r.URL.Path == "/long" {
		refuse(w, http.StatusAccepted, "it takes a while, ") // the rest follows
	}
	answer, _ := once.Do(r.Context(), s.store, s.op.For("1"), s.work)
	fmt.Fprint(w, answer)
}

func (s *shop) calls(w http.ResponseWriter, r *http.Request) {
	answer, err := once.Do(r.Context(), s.store, s.op.For("1"), s.work)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable) // want `afterguard: the handler goes on after http.Error: a return is missing`
	}
	fmt.Fprint(w, answer)
}

func (s *shop) ends(w http.ResponseWriter, r *http.Request) {
	if err := s.check(r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	} else {
		_, err = once.Do(r.Context(), s.store, s.op.For("1"), s.work)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
	log.Println("served")
}

func (s *shop) gin() gin.HandlerFunc {
	return func(c *gin.Context) {
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			c.Next() // want `afterguard: c.Next runs the handlers with gin's writer`
		})
		httponce.Handler(s.store, s.tenant, next, nil).ServeHTTP(c.Writer, c.Request)
	}
}

func (s *shop) ginRight(inner http.Handler) gin.HandlerFunc {
	return gin.WrapH(httponce.Middleware(s.store, s.tenant, s.opts)(inner))
}

func (s *shop) echo(e *echo.Echo) {
	e.Use(echo.WrapMiddleware(httponce.Middleware(s.store, s.tenant, s.opts))) // want `afterguard: echo responds to a returned error after the guard has ended`
	e.Use(guarded(httponce.Middleware(s.store, s.tenant, s.opts)))
}

func guarded(middleware func(http.Handler) http.Handler) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return echo.WrapMiddleware(middleware)(func(c echo.Context) error {
			if err := next(c); err != nil {
				c.Error(err)
			}
			return nil
		})
	}
}

func fails(w http.ResponseWriter, err error) {
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

func (s *shop) byHelper(w http.ResponseWriter, r *http.Request) {
	paid, err := once.Do(r.Context(), s.store, s.op.For("1"), s.work)
	if err != nil {
		fails(w, err) // want `afterguard: the handler goes on after fails: a return is missing`
	}
	fmt.Fprint(w, paid)
}

func (s *shop) bySwitch(w http.ResponseWriter, r *http.Request) {
	paid, err := once.Do(r.Context(), s.store, s.op.For("1"), s.work)
	switch {
	case err == nil:
	case r.Method == http.MethodGet:
		http.Error(w, "gone", http.StatusGone)
		return
	default:
		http.Error(w, "later", http.StatusServiceUnavailable) // want `afterguard: the handler goes on after http.Error: a return is missing`
	}
	fmt.Fprint(w, paid)
}

func (s *shop) byStatus(w http.ResponseWriter, r *http.Request) {
	paid, err := once.Do(r.Context(), s.store, s.op.For("1"), s.work)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // want `afterguard: the handler goes on after w.WriteHeader: a return is missing`
		fmt.Fprint(w, "later")
	}
	fmt.Fprint(w, paid)
}

func (s *shop) statusOnly(w http.ResponseWriter, r *http.Request) {
	text, err := once.Do(r.Context(), s.store, s.op.For("1"), s.work)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprint(w, text) // the body of both
}
