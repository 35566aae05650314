package store

import (
	"net/url"
	"strings"
)

// maxSource is how many bytes a store keeps of a source.
const maxSource = 255

// SourceText returns the name of a source followed by the facts that its broker
// reports (broker.Located), such as "rabbitmq queue orders
// [cluster=shop&vhost=%2F]". Facts without a value are left out. If the text would
// be longer than a store keeps, all facts are left out.
func SourceText(name string, facts map[string]string) string {
	told := url.Values{}
	for fact, value := range facts {
		if value != "" {
			told.Set(fact, value)
		}
	}
	return sourceText(name, told)
}

func sourceText(name string, facts url.Values) string {
	s := name + " [" + facts.Encode() + "]"
	plain := name
	if _, _, ok := splitSource(name); ok { // it would be read as a name with facts
		plain = name + " []"
	}
	if len(facts) == 0 || len(s) > maxSource {
		return plain
	}
	return s
}

// SplitSource is the reverse of SourceText.
func SplitSource(text string) (name string, facts map[string]string) {
	name, told, _ := splitSource(text)
	facts = make(map[string]string, len(told))
	for fact := range told {
		facts[fact] = told.Get(fact)
	}
	return name, facts
}

func splitSource(text string) (name string, facts url.Values, ok bool) {
	at := strings.LastIndex(text, " [")
	if at < 0 || !strings.HasSuffix(text, "]") {
		return text, nil, false
	}
	facts, err := url.ParseQuery(text[at+2 : len(text)-1])
	if err != nil {
		return text, nil, false
	}
	return text[:at], facts, true
}

// MatchSource reports whether two texts of SourceText can mean one source: they
// have the same name, and agree in each fact that both have. If so, both has the
// facts of the two, or only those of a if the text would be too long.
func MatchSource(a, b string) (both string, ok bool) {
	name, facts, _ := splitSource(a)
	other, more, _ := splitSource(b)
	if name != other {
		return "", false
	}
	all := url.Values{}
	for _, of := range []url.Values{facts, more} {
		for fact := range of {
			if all.Has(fact) && all.Get(fact) != of.Get(fact) {
				return "", false
			}
			all.Set(fact, of.Get(fact))
		}
	}
	if both = sourceText(name, all); len(both) < len(a) { // it has become too long
		return a, true
	}
	return both, true
}
