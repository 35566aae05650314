module vettest

go 1.26.0

require (
	github.com/Azure/azure-sdk-for-go/sdk/storage/azblob v0.0.0
	github.com/aws/aws-sdk-go-v2/service/s3 v0.0.0
	github.com/aws/aws-sdk-go-v2/service/sqs v0.0.0
	github.com/effectively-once/once v0.0.0
	github.com/effectively-once/once/httponce v0.0.0
	github.com/effectively-once/once/store/pgstore v0.0.0
	github.com/gin-gonic/gin v0.0.0
	github.com/google/uuid v0.0.0
	github.com/jackc/pgx/v5 v5.0.0
	github.com/labstack/echo/v4 v4.0.0
	github.com/nats-io/nats.go v0.0.0
	github.com/rabbitmq/amqp091-go v0.0.0
	github.com/redis/go-redis/v9 v9.0.0
	github.com/segmentio/kafka-go v0.0.0
	github.com/stripe/stripe-go/v82 v82.0.0
	github.com/uptrace/bun v0.0.0
	google.golang.org/grpc v0.0.0
	gorm.io/gorm v0.0.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	github.com/gowebpki/jcs v1.0.2 // indirect
)

replace (
	github.com/Azure/azure-sdk-for-go/sdk/storage/azblob => ./stubs/azblob
	github.com/aws/aws-sdk-go-v2/service/s3 => ./stubs/s3
	github.com/aws/aws-sdk-go-v2/service/sqs => ./stubs/sqs
	github.com/effectively-once/once => ../../../..
	github.com/effectively-once/once/httponce => ../../../../httponce
	github.com/effectively-once/once/store/pgstore => ./stubs/pgstore
	github.com/gin-gonic/gin => ./stubs/gin
	github.com/google/uuid => ./stubs/uuid
	github.com/jackc/pgx/v5 => ./stubs/pgx
	github.com/labstack/echo/v4 => ./stubs/echo
	github.com/nats-io/nats.go => ./stubs/nats
	github.com/rabbitmq/amqp091-go => ./stubs/amqp
	github.com/redis/go-redis/v9 => ./stubs/redis
	github.com/segmentio/kafka-go => ./stubs/kafka
	github.com/stripe/stripe-go/v82 => ./stubs/stripe
	github.com/uptrace/bun => ./stubs/bun
	google.golang.org/grpc => ./stubs/grpc
	gorm.io/gorm => ./stubs/gorm
)
