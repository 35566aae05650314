package dynamostore

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/internal/castest"
)

// The partition key of an item is no part of it: it says which one it is.
func TestNoDamagedBitRepeatsFinishedWork(t *testing.T) {
	o := new(Options).ready()
	it := o.encode(castest.Finished(t), "v")
	key := it[o.PartitionKey]
	delete(it, o.PartitionKey)
	names := slices.Sorted(maps.Keys(it))
	var stored [][]byte
	for _, name := range names {
		stored = append(stored, []byte(name))
		switch v := it[name].(type) {
		case *types.AttributeValueMemberS:
			stored = append(stored, []byte(v.Value))
		case *types.AttributeValueMemberN:
			stored = append(stored, []byte(v.Value))
		case *types.AttributeValueMemberB:
			stored = append(stored, slices.Clone(v.Value))
		default:
			t.Fatalf("%s is a %T", name, v)
		}
	}
	castest.EveryBit(t, stored, func(stored [][]byte) (cas.Row, error) {
		damaged := item{o.PartitionKey: key}
		for i, name := range names {
			value := stored[2*i+1]
			var is types.AttributeValue
			switch it[name].(type) {
			case *types.AttributeValueMemberS:
				is = &types.AttributeValueMemberS{Value: string(value)}
			case *types.AttributeValueMemberN:
				is = &types.AttributeValueMemberN{Value: string(value)}
			case *types.AttributeValueMemberB:
				is = &types.AttributeValueMemberB{Value: slices.Clone(value)}
			}
			damaged[string(stored[2*i])] = is
		}
		row, err := o.decode(damaged)
		return row.Row, err
	})
}

// kept is an attribute in a sample.
type kept struct {
	S, N string `json:",omitempty"`
	B    []byte `json:",omitempty"`
}

func TestEveryFormatIsRead(t *testing.T) {
	o, all := new(Options).ready(), make(map[string]kept)
	for name, value := range o.encode(castest.Kept(t), "v") {
		switch v := value.(type) {
		case *types.AttributeValueMemberS:
			all[name] = kept{S: v.Value}
		case *types.AttributeValueMemberN:
			all[name] = kept{N: v.Value}
		case *types.AttributeValueMemberB:
			all[name] = kept{B: v.Value}
		}
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	read := func(text []byte) (cas.Row, error) {
		all, it := make(map[string]kept), make(item)
		if err := json.Unmarshal(text, &all); err != nil {
			return cas.Row{}, err
		}
		for name, v := range all {
			switch {
			case v.B != nil:
				it[name] = &types.AttributeValueMemberB{Value: v.B}
			case v.N != "":
				it[name] = &types.AttributeValueMemberN{Value: v.N}
			default:
				it[name] = &types.AttributeValueMemberS{Value: v.S}
			}
		}
		is, err := o.decode(it)
		return is.Row, err
	}
	castest.Formats(t, text, read)
	all["format"] = kept{N: "3"}
	next, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	row, err := read(next)
	castest.Newer(t, row, err)
}
