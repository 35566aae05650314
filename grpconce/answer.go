package grpconce

import (
	"errors"
	"fmt"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/effectively-once/once"
)

// answer is what a handler returned, now or in an earlier call: a response or a
// refusal.
type answer struct {
	response any
	refusal  *status.Status
	final    bool // the refusal counts only if it is recorded
}

// The content types of outcomes. An Any names the type of its message.
const (
	responseType = `application/protobuf; type="google.protobuf.Any"`
	refusalType  = `application/protobuf; type="google.rpc.Status"`
)

// codec encodes answers as protocol buffers.
type codec struct{}

// Encode omits a response that is not a protocol buffer message. It reaches the
// first caller and is not kept.
func (codec) Encode(a answer) (once.Outcome, error) {
	if a.refusal != nil {
		refusal := a.refusal.Proto() // a copy
		refusal.Message = strings.ToValidUTF8(refusal.Message, "\uFFFD")
		return kept(refusal, refusalType), nil
	}
	message, err := messageOf(a.response)
	if err != nil {
		return once.Outcome{Omitted: true}, nil
	}
	wrapped, err := anypb.New(message)
	if err != nil {
		return once.Outcome{Omitted: true}, nil
	}
	return kept(wrapped, responseType), nil
}

func kept(m proto.Message, contentType string) once.Outcome {
	body, err := proto.Marshal(m)
	return once.Outcome{Body: body, ContentType: contentType, Omitted: err != nil}
}

// Decode decodes a response or a refusal.
func (codec) Decode(out once.Outcome) (answer, error) {
	switch out.ContentType {
	case responseType:
		var wrapped anypb.Any
		if err := proto.Unmarshal(out.Body, &wrapped); err != nil {
			return answer{}, err
		}
		message, err := wrapped.UnmarshalNew()
		return answer{response: message}, err
	case refusalType:
		var refusal spb.Status
		err := proto.Unmarshal(out.Body, &refusal)
		return answer{refusal: status.FromProto(&refusal)}, err
	}
	return answer{}, fmt.Errorf("the stored outcome has the type %q, not that of a gRPC answer", out.ContentType)
}

// Outcome returns a response, or the status error of a refusal, as it is
// recorded. Pass it to [once.MarkDone] to settle a call whose outcome is
// unknown.
func Outcome(response proto.Message, refusal error) (once.Outcome, error) {
	a := answer{response: response}
	if refusal != nil {
		a.refusal = statusOf(refusal)
	}
	out, err := codec{}.Encode(a)
	out.Rejected = refusal != nil
	return out, err
}

// messageOf accepts messages of both protobuf APIs, like the codec of gRPC.
func messageOf(v any) (proto.Message, error) {
	switch m := v.(type) {
	case proto.Message:
		return m, nil
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m), nil
	default:
		return nil, fmt.Errorf("%T is not a protocol buffer message", v)
	}
}

// grpcStatus returns nil if the method of the error panics, as with a nil pointer.
func grpcStatus(of interface{ GRPCStatus() *status.Status }) (s *status.Status) {
	defer func() {
		if recover() != nil {
			s = nil
		}
	}()
	return of.GRPCStatus()
}

// statusOf returns the status in the tree of a handler's error, without the text
// that wraps it.
func statusOf(err error) *status.Status {
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) {
		if s := grpcStatus(has); s.Code() != codes.OK {
			return s
		}
	}
	s := status.FromContextError(err) // Unknown, except for errors of contexts
	if s.Code() == codes.Unknown && errors.Is(err, once.ErrRejected) {
		return status.New(codes.FailedPrecondition, err.Error())
	}
	return s
}
