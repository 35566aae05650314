package paymentintent

import "github.com/stripe/stripe-go/v82"

func New(params *stripe.PaymentIntentParams) (*stripe.PaymentIntent, error)            { panic(0) }
func Get(id string, params *stripe.PaymentIntentParams) (*stripe.PaymentIntent, error) { panic(0) }
