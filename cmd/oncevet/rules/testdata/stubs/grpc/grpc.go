package grpc

type CallOption interface{ before() }
