// Package sqsbroker carries messages over SQS and SNS.
package sqsbroker
