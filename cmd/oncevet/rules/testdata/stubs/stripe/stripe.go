package stripe

type Params struct{ IdempotencyKey *string }

func (p *Params) SetIdempotencyKey(key string) { p.IdempotencyKey = &key }

type PaymentIntentParams struct {
	Params
	Amount *int64
}

type PaymentIntent struct{ ID string }

func String(s string) *string { return &s }
func Int64(n int64) *int64    { return &n }
