package httponce

import (
	"cmp"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// replayed are the headers that are recorded by default.
var replayed = []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location",
	"Content-Type", "Etag", "Last-Modified", "Link", "Location", "Vary"}

// bodyNotKept is a header of the recorded format, never of a response.
const bodyNotKept = "Once-Body-Not-Kept"

// neverReplayed are headers of one connection or one client, and headers that
// are set anew for every response.
var neverReplayed = setOf("Authentication-Info", "Authorization", "Connection", "Content-Length", "Date", "Http2-Settings", "Keep-Alive",
	"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie", "Set-Cookie2", "Te",
	"Trailer", "Trailers", "Transfer-Encoding", "Upgrade", "Www-Authenticate", ReplayedHeader, LifetimeHeader, bodyNotKept)

// ofBody are headers that describe the body.
var ofBody = setOf("Content-Digest", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Length", "Content-Location", "Content-Md5",
	"Content-Range", "Content-Type", "Digest", "Etag", "Last-Modified", "Repr-Digest", "Trailer")

func setOf(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// validHeader reports whether name is a valid name of a header.
func validHeader(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}

// field is a header of a response and its canonical name.
type field struct {
	canonical, spelled string
	values             []string
}

// fieldsOf returns a copy of a header in order of the canonical names. If a name
// is spelled in several ways, its values are in the order of net/http.
func fieldsOf(header http.Header) []field {
	n := 0
	for _, values := range header {
		n += len(values)
	}
	fields, all := make([]field, 0, len(header)), make([]string, 0, n)
	for name, values := range header {
		f := field{canonical: textproto.CanonicalMIMEHeaderKey(name), spelled: name}
		if values != nil { // nil keeps net/http from setting the header
			all = append(all, values...)
			f.values = slices.Clip(all[len(all)-len(values):])
		}
		fields = append(fields, f)
	}
	sortFields(fields)
	return fields
}

// ownFields returns the fields of a response that its handler has set: those of
// header that are not as outer handlers have left them. If the handler has added
// values to theirs, only its own count. What outer handlers set is about one
// response: another may be compressed, or have another origin. Only their
// Content-Type stays, because it describes the body of the handler.
func ownFields(sent []field, header, outer http.Header) []field {
	if outer == nil {
		return sent
	}
	own := make([]field, 0, len(sent))
	for _, f := range sent {
		theirs, found := outer[f.spelled]
		switch {
		case !found || f.canonical == "Content-Type":
		case isSame(header[f.spelled], theirs):
			continue
		case len(theirs) > 0 && len(f.values) > len(theirs) && slices.Equal(f.values[:len(theirs)], theirs):
			f.values = f.values[len(theirs):]
		}
		own = append(own, f)
	}
	return own
}

// isSame reports whether two lists are one, and not only equal: a handler that
// sets a header makes a new list.
func isSame(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func sortFields(fields []field) {
	slices.SortStableFunc(fields, func(a, b field) int {
		return cmp.Or(strings.Compare(a.canonical, b.canonical), strings.Compare(a.spelled, b.spelled))
	})
}

// find returns the values of a header in this spelling.
func find(fields []field, spelled string) []string {
	for _, f := range fields {
		if f.spelled == spelled {
			return f.values
		}
	}
	return nil
}

// has reports whether a header is present in any spelling.
func has(fields []field, canonical string) bool {
	return slices.ContainsFunc(fields, func(f field) bool { return f.canonical == canonical })
}

// hopsOf returns the lists of headers of one connection.
func hopsOf(fields []field) (lists []string) {
	for _, f := range fields {
		if f.canonical == "Connection" {
			lists = append(lists, f.values...)
		}
	}
	return lists
}

// isReplayed reports whether repeats may get a header: one in only, or any if
// only is nil, that is not for a single response or in one of the lists of hops.
func isReplayed(canonical string, only map[string]bool, hops []string) bool {
	if only != nil && !only[canonical] || neverReplayed[canonical] {
		return false
	}
	for _, list := range hops {
		for hop := range strings.SplitSeq(list, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(hop)) == canonical {
				return false
			}
		}
	}
	return true
}

// values returns the values of a header in any spelling, and whether the header
// is present.
func values(header http.Header, canonical string) (all []string, found bool) {
	all, found = header[canonical]
	for name, values := range header {
		if name != canonical && len(name) == len(canonical) && strings.EqualFold(name, canonical) {
			all, found = append(slices.Clip(all), values...), true
		}
	}
	return all, found
}

// remove removes a header in any spelling.
func remove(header http.Header, canonical string) {
	for name := range header {
		if len(name) == len(canonical) && strings.EqualFold(name, canonical) {
			delete(header, name)
		}
	}
}

// join sets a recorded header in a response. A value that an outer handler has
// set for this request stays, unless it describes the body. Vary and Link get
// both values.
func join(header http.Header, name string, recorded []string) {
	outer, set := values(header, name)
	switch {
	case !set:
		header[name] = recorded
	case ofBody[name] || name == "Location":
		remove(header, name)
		header[name] = recorded
	case name == "Vary" || name == "Link":
		for _, value := range recorded {
			if !slices.Contains(outer, value) {
				header.Add(name, value)
			}
		}
	}
}
