package grpconce

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// RefuseStreams returns an interceptor that refuses streams which could be taken
// for guarded: those that bring a key, and those of a method for which
// Options.Required is true. Streams are not guarded (see the package
// documentation), so without it such a stream would run once per attempt. Other
// streams pass. Use it beside [Server] or [ServerTx], with the same options.
func RefuseStreams(o *Options) grpc.StreamServerInterceptor {
	required := func(string) bool { return false }
	if o != nil && o.Required != nil {
		required = o.Required
	}
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if sent := len(metadata.ValueFromIncomingContext(stream.Context(), KeyMetadata)) > 0; !sent && !required(info.FullMethod) {
			return next(srv, stream)
		}
		return refuse(ReasonStream, "a stream cannot be guarded by a key: send a key with each message; nothing was done", 0, nil)
	}
}
