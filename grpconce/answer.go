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

// answer is what a handler has returned, or what it returned at another time: a response or a refusal.
type answer struct {
	response any
	refusal  *status.Status
	final    bool // the refusal holds only if it is on record
}

// The two types of what is stored. An Any names the type of the message in it.
const (
	responseType = `application/protobuf; type="google.protobuf.Any"`
	refusalType  = `application/protobuf; type="google.rpc.Status"`
)

type codec struct{}

// Encode leaves out what is not protocol buffers: such a response reaches its first caller, and is not kept.
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
	return answer{}, fmt.Errorf("the stored outcome is of the type %q, not a gRPC answer", out.ContentType)
}

// Outcome is a response, or the status error of a refusal, as it is recorded. It is for [once.MarkDone], by which a person
// settles a call whose outcome is unknown.
func Outcome(response proto.Message, refusal error) (once.Outcome, error) {
	a := answer{response: response}
	if refusal != nil {
		a.refusal = statusOf(refusal)
	}
	out, err := codec{}.Encode(a)
	out.Rejected = refusal != nil
	return out, err
}

// messageOf takes messages of both generations, as the codec of gRPC does.
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

// statusOf is the status in the tree of a handler's error, without what was written around it.
func statusOf(err error) *status.Status {
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) {
		if s := has.GRPCStatus(); s.Code() != codes.OK {
			return s
		}
	}
	s := status.FromContextError(err) // Unknown, unless the error is of a context
	if s.Code() == codes.Unknown && errors.Is(err, once.ErrRejected) {
		return status.New(codes.FailedPrecondition, err.Error())
	}
	return s
}
