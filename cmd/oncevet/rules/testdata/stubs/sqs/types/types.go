package types

type Message struct{ MessageId, ReceiptHandle, Body *string }
