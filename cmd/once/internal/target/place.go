package target

import (
	"cmp"
	"net"
	"net/url"
	"strings"
)

// Place is where the database of a URL is.
type Place struct {
	Address string // host:port of its server, or the path of its file or socket

	// Passes reports whether the program that uses the database can reach it through
	// a proxy for TCP: it has one server, and connects only to the address in the URL.
	Passes bool

	u url.URL
}

var ports = map[Engine]string{PostgreSQL: "5432", MySQL: "3306", Redis: "6379", NATS: "4222"}

// PlaceOf returns the place of the database of a URL.
func PlaceOf(from string) (p Place, err error) {
	expanded, err := Expand(from)
	if err != nil {
		return p, err
	}
	u, err := parse(expanded)
	if err != nil {
		return p, err
	}
	cluster := u.Query().Has("cluster")
	if _, err = takeOwn(u); err != nil {
		return p, err
	}
	p.u = *u
	q, port := u.Query(), ports[engineOf(u.Scheme)]
	switch {
	case engineOf(u.Scheme) == SQLite:
		p.Address = cmp.Or(u.Opaque, u.Path)
		if plain, err := url.PathUnescape(p.Address); err == nil && u.Opaque != "" {
			p.Address = plain
		}
	case q.Has("socket"):
		p.Address = q.Get("socket")
	case port == "" || u.Hostname() == "":
		p.Address = u.Host
	default:
		p.Address = u.Host
		if u.Port() == "" && !strings.Contains(u.Host, ",") {
			p.Address = net.JoinHostPort(u.Hostname(), port)
		}
		p.Passes = !cluster && !q.Has("addr") && !q.Has("master_name") && !q.Has("host") && !strings.Contains(u.Host, ",")
	}
	return p, nil
}

// Through returns the URL of the database for its driver, without the parameters of
// this command, and with another address if that is not empty.
func (p Place) Through(address string) string {
	u := p.u
	if address != "" {
		u.Host = address
	}
	return u.String()
}
