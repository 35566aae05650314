package httponce

import (
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
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~") == ""
}

// names returns the names of headers as they are spelled, in order. If a name is
// spelled in several ways, its values are then in the order of net/http.
func names(header http.Header) []string {
	all := make([]string, 0, len(header)) // six allocations less than slices.Sorted(maps.Keys(header))
	for name := range header {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
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

// forReplay returns the headers of a response that repeats may get, under
// canonical names: those in only, or all if only is nil, without the headers of
// a single response.
func forReplay(header http.Header, only map[string]bool) http.Header {
	kept := make(http.Header, len(header))
	for _, name := range names(header) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if (only == nil || only[canonical]) && !neverReplayed[canonical] {
			kept[canonical] = append(slices.Clip(kept[canonical]), header[name]...)
		}
	}
	hops, _ := values(header, "Connection")
	for _, list := range hops {
		for hop := range strings.SplitSeq(list, ",") {
			delete(kept, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(hop)))
		}
	}
	return kept
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
