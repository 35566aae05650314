// Package jsoncodec keeps values as JSON.
package jsoncodec

import (
	"encoding/json"
	"fmt"
)

const contentType = "application/json"

type fields = struct {
	Body        []byte
	ContentType string
	Rejected    bool
	Omitted     bool
	Sum         uint32
}

// Codec is the once.Codec of an operation that names none. O is once.Outcome; a T that is one is kept as it is.
type Codec[T any, O ~fields] struct{}

// Encode makes an outcome of a value.
func (Codec[T, O]) Encode(v T) (O, error) {
	if out, ok := any(v).(O); ok {
		return out, nil
	}
	body, err := json.Marshal(v)
	return O(fields{Body: body, ContentType: contentType}), err
}

// Decode makes a value of an outcome.
func (Codec[T, O]) Decode(out O) (v T, err error) {
	if asIs, ok := any(&v).(*O); ok {
		*asIs = out
		return v, nil
	}
	kept := fields(out)
	if kept.ContentType != contentType {
		return v, fmt.Errorf("the stored outcome is of the type %q, not JSON: another Codec wrote it", kept.ContentType)
	}
	return v, json.Unmarshal(kept.Body, &v)
}
