package once

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/effectively-once/once/internal/checksum"
)

// Outcome is the answer to a unit of work, as it is stored and replayed.
type Outcome struct {
	Body        []byte
	ContentType string
	Rejected    bool   // the work returned ErrRejected: an answer like any other, replayed and never retried
	Omitted     bool   // the work is done, but its answer could not be kept; see ErrOutcomeUnavailable
	Sum         uint32 // set and checked by this package, kept by stores: a damaged outcome is never replayed
}

// checksum returns the sum of an outcome that is stored with this key.
func (o Outcome) checksum(key [16]byte) uint32 {
	return checksum.Of(key, o.ContentType, o.Body, o.Rejected, o.Omitted)
}

// sealedType is the content type of a sealed outcome. The content type of the
// answer is sealed with its body.
const sealedType = "application/vnd.once.sealed"

// isSealed reports whether o is sealed.
func (o Outcome) isSealed() bool { return strings.HasPrefix(o.ContentType, sealedType) }

// Codec converts values to outcomes and back.
type Codec[T any] interface {
	Encode(T) (Outcome, error)
	Decode(Outcome) (T, error)
}

// jsonCodec is the default Codec. It leaves a T that is an Outcome unchanged.
type jsonCodec[T any] struct{}

const jsonType = "application/json"

func (jsonCodec[T]) Encode(v T) (Outcome, error) {
	if out, ok := any(v).(Outcome); ok {
		return out, nil
	}
	body, err := json.Marshal(v)
	return Outcome{Body: body, ContentType: jsonType}, err
}

func (jsonCodec[T]) Decode(out Outcome) (v T, err error) {
	if asIs, ok := any(&v).(*Outcome); ok {
		*asIs = out
		return v, nil
	}
	if out.ContentType != jsonType {
		return v, fmt.Errorf("the stored outcome has the content type %q, not JSON: another Codec wrote it", out.ContentType)
	}
	return v, json.Unmarshal(out.Body, &v)
}
