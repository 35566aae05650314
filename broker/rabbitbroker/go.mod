module github.com/effectively-once/once/broker/rabbitbroker

go 1.24.0

require (
	github.com/effectively-once/once v0.0.0
	github.com/rabbitmq/amqp091-go v1.16.0
)

replace github.com/effectively-once/once => ../..
