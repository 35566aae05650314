package dynamofake

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
)

// value is an attribute value as it is on the wire: one type and its content.
type value map[string]any

// item has attributes.
type item map[string]value

func (v value) kind() string {
	for kind := range v {
		return kind
	}
	return ""
}

// text returns the content of a string, number or binary.
func (v value) text() string {
	s, _ := v[v.kind()].(string)
	return s
}

func (v value) rat() *big.Rat {
	r, ok := new(big.Rat).SetString(v.text())
	if !ok {
		return new(big.Rat)
	}
	return r
}

func equal(a, b value) bool {
	if a.kind() == "N" && b.kind() == "N" {
		return a.rat().Cmp(b.rat()) == 0
	}
	return reflect.DeepEqual(a, b)
}

// compare orders values of one type, by bytes or as numbers. ok is false if they
// have no order.
func compare(a, b value) (order int, ok bool) {
	if a.kind() != b.kind() {
		return 0, false
	}
	switch a.kind() {
	case "N":
		return a.rat().Cmp(b.rat()), true
	case "S":
		return cmp.Compare(a.text(), b.text()), true
	case "B":
		x, _ := base64.StdEncoding.DecodeString(a.text())
		y, _ := base64.StdEncoding.DecodeString(b.text())
		return bytes.Compare(x, y), true
	}
	return 0, false
}

// size returns the size of an item, as the service counts it for its limit.
func size(it item) (n int) {
	for name, v := range it {
		n += len(name)
		switch v.kind() {
		case "S":
			n += len(v.text())
		case "B":
			n += base64.StdEncoding.DecodedLen(len(v.text())) - strings.Count(v.text(), "=")
		case "N":
			n += len(v.text())/2 + 1
		default:
			text, _ := json.Marshal(v)
			n += len(text)
		}
	}
	return n
}

// check refuses a value that the service refuses.
func (v value) check() error {
	if len(v) != 1 {
		return errors.New("an AttributeValue must have exactly one type")
	}
	switch kind := v.kind(); kind {
	case "N":
		if _, ok := new(big.Rat).SetString(v.text()); !ok {
			return fmt.Errorf("the parameter cannot be converted to a numeric value: %s", v.text())
		}
	case "S", "B", "BOOL", "NULL", "SS", "NS", "BS", "L", "M":
	default:
		return fmt.Errorf("an AttributeValue has the type %s", kind)
	}
	return nil
}
