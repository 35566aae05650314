package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/valyala/fasthttp"

	"github.com/effectively-once/once/bench/internal/turn"
)

const (
	requestsPerUnit = 64
	keyHeader       = "X-Idempotency-Key"
	oneKey          = "8e03978e-40d5-43dd-bc93-6894a57f9324"
)

var payment = []byte(`{"amount":4999,"currency":"EUR","order":"2026-1171"}`)

// addFiberHandler adds Fiber's idempotency middleware with storage and lock in
// memory, around the same handler. It does not compare requests and has no
// scopes. Fiber does not use net/http, so the baseline is its own bare handler.
func (o *opened) addFiberHandler() {
	name := "Fiber " + version("github.com/gofiber/fiber/v3")
	var n atomic.Int64
	newKey := func() string { return fmt.Sprintf("8e03978e-40d5-43dd-bc93-%012d", n.Add(1)) }
	o.addHandler(name+", bare handler", fiberHandler(false), nil)
	o.addHandler(name+", idempotency, first request", fiberHandler(true), newKey)
	o.addHandler(name+", idempotency, repeat", fiberHandler(true), func() string { return oneKey })
}

func fiberHandler(guarded bool) fasthttp.RequestHandler {
	app := fiber.New()
	if guarded {
		app.Use(idempotency.New(idempotency.Config{Lifetime: 24 * time.Hour}))
	}
	app.Post("/payments", func(c fiber.Ctx) error {
		c.Set(fiber.HeaderContentType, "application/json")
		return c.Status(fiber.StatusCreated).SendString(answer300)
	})
	return app.Handler()
}

func (o *opened) addHandler(name string, h fasthttp.RequestHandler, key func() string) {
	o.add(peer{turn.Peer{Name: name, Scenario: turn.HTTP}, func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
		return turn.Run(ctx, workers, length, func(context.Context) error {
			for range requestsPerUnit {
				if status := serve(h, key); status != fiber.StatusCreated {
					return fmt.Errorf("%s: status %d", name, status)
				}
			}
			return nil
		})
	}})
}

func serve(h fasthttp.RequestHandler, key func() string) int {
	var c fasthttp.RequestCtx
	c.Request.Header.SetMethod(fiber.MethodPost)
	c.Request.SetRequestURI("/payments")
	c.Request.Header.SetContentType("application/json")
	c.Request.SetBody(payment)
	if key != nil {
		c.Request.Header.Set(keyHeader, key())
	}
	h(&c)
	return c.Response.StatusCode()
}
