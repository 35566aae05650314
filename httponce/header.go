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
	"Trailer", "Trailers", "Transfer-Encoding", "Upgrade", "Www-Authenticate", ReplayedHeader, bodyNotKept)

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

// forReplay appends the headers of a response that repeats may get: those in
// only, or all if only is nil, without the headers of a single response. They
// are in order of their canonical names. If a name is spelled in several ways,
// its values are in the order of net/http.
func forReplay(to []field, header http.Header, only map[string]bool) []field {
	hops, _ := values(header, "Connection")
	for name, values := range header {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if (only == nil || only[canonical]) && !neverReplayed[canonical] && !isHop(hops, canonical) {
			to = append(to, field{canonical, name, values})
		}
	}
	slices.SortFunc(to, func(a, b field) int {
		return cmp.Or(strings.Compare(a.canonical, b.canonical), strings.Compare(a.spelled, b.spelled))
	})
	return to
}

// isHop reports whether the lists of Connection name a header.
func isHop(lists []string, canonical string) bool {
	for _, list := range lists {
		for hop := range strings.SplitSeq(list, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(hop)) == canonical {
				return true
			}
		}
	}
	return false
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
