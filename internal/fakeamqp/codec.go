// Package fakeamqp is a server of AMQP 1.0 in the process of a test. It speaks as
// much of Azure Service Bus and of Event Hubs as the official clients for Go need
// (UseDevelopmentEmulator=true), and follows the documentation of the vendor. It
// is not the service: a test that passes here says nothing of what only the
// service does, such as its failovers, its throttling and its limits.
package fakeamqp

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

type (
	Sym  string
	UUID [16]byte
	Desc struct { // described value
		Code uint64
		Name Sym
		V    any
	}
	KV  struct{ K, V any }
	Map []KV
)

func (m Map) Get(k string) any {
	for _, e := range m {
		if s, ok := e.K.(string); ok && s == k {
			return e.V
		}
		if s, ok := e.K.(Sym); ok && string(s) == k {
			return e.V
		}
	}
	return nil
}
func (m *Map) Set(k, v any) {
	for i := range *m {
		if (*m)[i].K == k {
			(*m)[i].V = v
			return
		}
	}
	*m = append(*m, KV{k, v})
}

var be = binary.BigEndian

type dec struct{ b []byte }

func (d *dec) n(k int) []byte { r := d.b[:k]; d.b = d.b[k:]; return r }

// val decodes one value; it panics on malformed input (recovered per connection).
func (d *dec) val() any {
	c := d.n(1)[0]
	if c == 0 {
		x := Desc{}
		switch t := d.val().(type) {
		case uint64:
			x.Code = t
		case Sym:
			x.Name = t
		}
		x.V = d.val()
		return x
	}
	return d.body(c)
}
func (d *dec) body(c byte) any {
	switch c {
	case 0x40:
		return nil
	case 0x41:
		return true
	case 0x42:
		return false
	case 0x56:
		return d.n(1)[0] == 1
	case 0x50:
		return d.n(1)[0]
	case 0x51:
		return int8(d.n(1)[0])
	case 0x60:
		return be.Uint16(d.n(2))
	case 0x61:
		return int16(be.Uint16(d.n(2)))
	case 0x43:
		return uint32(0)
	case 0x52:
		return uint32(d.n(1)[0])
	case 0x70:
		return be.Uint32(d.n(4))
	case 0x44:
		return uint64(0)
	case 0x53:
		return uint64(d.n(1)[0])
	case 0x80:
		return be.Uint64(d.n(8))
	case 0x54:
		return int32(int8(d.n(1)[0]))
	case 0x71:
		return int32(be.Uint32(d.n(4)))
	case 0x55:
		return int64(int8(d.n(1)[0]))
	case 0x81:
		return int64(be.Uint64(d.n(8)))
	case 0x72:
		return math.Float32frombits(be.Uint32(d.n(4)))
	case 0x82:
		return math.Float64frombits(be.Uint64(d.n(8)))
	case 0x73:
		return rune(be.Uint32(d.n(4)))
	case 0x83:
		return time.UnixMilli(int64(be.Uint64(d.n(8)))).UTC()
	case 0x98:
		return UUID(d.n(16))
	case 0xa0:
		return append([]byte{}, d.n(int(d.n(1)[0]))...)
	case 0xb0:
		return append([]byte{}, d.n(int(be.Uint32(d.n(4))))...)
	case 0xa1:
		return string(d.n(int(d.n(1)[0])))
	case 0xb1:
		return string(d.n(int(be.Uint32(d.n(4)))))
	case 0xa3:
		return Sym(d.n(int(d.n(1)[0])))
	case 0xb3:
		return Sym(d.n(int(be.Uint32(d.n(4)))))
	case 0x45:
		return []any{}
	case 0xc0:
		d.n(1)
		return d.list(int(d.n(1)[0]))
	case 0xd0:
		d.n(4)
		return d.list(int(be.Uint32(d.n(4))))
	case 0xc1:
		d.n(1)
		return d.mapv(int(d.n(1)[0]))
	case 0xd1:
		d.n(4)
		return d.mapv(int(be.Uint32(d.n(4))))
	case 0xe0:
		d.n(1)
		return d.array(int(d.n(1)[0]))
	case 0xf0:
		d.n(4)
		return d.array(int(be.Uint32(d.n(4))))
	}
	panic(fmt.Sprintf("amqp type %#x", c))
}
func (d *dec) list(n int) any {
	l := make([]any, n)
	for i := range l {
		l[i] = d.val()
	}
	return l
}
func (d *dec) mapv(n int) any {
	m := make(Map, 0, n/2)
	for range n / 2 {
		k := d.val()
		m = append(m, KV{k, d.val()})
	}
	return m
}
func (d *dec) array(n int) any {
	c := d.n(1)[0]
	l := make([]any, n)
	for i := range l {
		l[i] = d.body(c)
	}
	return l
}

func put32(b []byte, v uint32) []byte { return be.AppendUint32(b, v) }

// enc appends v. Ints are always written full width, lists/maps always 32-bit.
func enc(b []byte, v any) []byte {
	switch t := v.(type) {
	case nil:
		return append(b, 0x40)
	case bool:
		if t {
			return append(b, 0x41)
		}
		return append(b, 0x42)
	case uint8:
		return append(b, 0x50, t)
	case int8:
		return append(b, 0x51, byte(t))
	case uint16:
		return be.AppendUint16(append(b, 0x60), t)
	case int16:
		return be.AppendUint16(append(b, 0x61), uint16(t))
	case uint32:
		return put32(append(b, 0x70), t)
	case int32:
		return put32(append(b, 0x71), uint32(t))
	case uint64:
		return be.AppendUint64(append(b, 0x80), t)
	case int64:
		return be.AppendUint64(append(b, 0x81), uint64(t))
	case float32:
		return put32(append(b, 0x72), math.Float32bits(t))
	case float64:
		return be.AppendUint64(append(b, 0x82), math.Float64bits(t))
	case time.Time:
		return be.AppendUint64(append(b, 0x83), uint64(t.UnixMilli()))
	case UUID:
		return append(append(b, 0x98), t[:]...)
	case []byte:
		return append(put32(append(b, 0xb0), uint32(len(t))), t...)
	case string:
		return append(put32(append(b, 0xb1), uint32(len(t))), t...)
	case Sym:
		return append(put32(append(b, 0xb3), uint32(len(t))), t...)
	case Desc:
		b = append(b, 0)
		if t.Name != "" {
			b = enc(b, t.Name)
		} else if t.Code < 256 {
			b = append(b, 0x53, byte(t.Code))
		} else {
			b = enc(b, t.Code)
		}
		return enc(b, t.V)
	case []any:
		var body []byte
		for _, x := range t {
			body = enc(body, x)
		}
		return wrap(b, 0xd0, len(t), body)
	case Map:
		var body []byte
		for _, x := range t {
			body = enc(enc(body, x.K), x.V)
		}
		return wrap(b, 0xd1, 2*len(t), body)
	case []string:
		return encArr(b, 0xb1, t)
	case []Sym:
		return encArr(b, 0xb3, t)
	case []int64:
		return encArr(b, 0x81, t)
	case []time.Time:
		return encArr(b, 0x83, t)
	}
	panic(fmt.Sprintf("cannot encode %T", v))
}
func wrap(b []byte, c byte, n int, body []byte) []byte {
	b = put32(append(b, c), uint32(len(body)+4))
	return append(put32(b, uint32(n)), body...)
}
func encArr[T any](b []byte, c byte, l []T) []byte {
	body := []byte{c}
	for _, x := range l {
		body = append(body, enc(nil, x)[1:]...)
	}
	return wrap(b, 0xf0, len(l), body)
}

// message is a parsed AMQP message; Bare keeps properties..footer sections byte for byte.
type message struct {
	Header []any
	Annot  Map
	Props  []any
	App    Map
	rawApp []byte // raw application-properties section, nil when App was changed
	props  []byte // raw properties section
	body   []byte // raw data / sequence / value / footer sections
	Data   [][]byte
	Value  any
}

func parseMessage(b []byte) *message {
	m := &message{}
	for len(b) > 0 {
		d := &dec{b}
		x := d.val().(Desc)
		raw := b[:len(b)-len(d.b)]
		b = d.b
		switch x.Code {
		case 0x70:
			m.Header, _ = x.V.([]any)
		case 0x72:
			m.Annot, _ = x.V.(Map)
		case 0x73:
			m.Props, _ = x.V.([]any)
			m.props = raw
		case 0x74:
			m.App, _ = x.V.(Map)
			m.rawApp = raw
		case 0x75, 0x76, 0x77, 0x78:
			m.body = append(m.body, raw...)
			if p, ok := x.V.([]byte); ok && x.Code == 0x75 {
				m.Data = append(m.Data, p)
			}
			if x.Code == 0x77 {
				m.Value = x.V
			}
		}
	}
	return m
}
func (m *message) prop(i int) any {
	if i < len(m.Props) {
		return m.Props[i]
	}
	return nil
}

// encode writes the message with the given delivery count and extra annotations.
func (m *message) encode(count uint32, annot Map) []byte {
	var ttl any
	durable := any(true)
	if len(m.Header) > 2 {
		ttl = m.Header[2]
	}
	b := enc(nil, Desc{Code: 0x70, V: []any{durable, uint8(4), ttl, false, count}})
	if len(annot) > 0 {
		b = enc(b, Desc{Code: 0x72, V: annot})
	}
	b = append(b, m.props...)
	if m.rawApp != nil {
		b = append(b, m.rawApp...)
	} else if m.App != nil {
		b = enc(b, Desc{Code: 0x74, V: m.App})
	}
	return append(b, m.body...)
}
