package hook

import (
	"fmt"
	"net/netip"
	"syscall"
)

// guard is the list of networks that are allowed although they are not public.
type guard []netip.Prefix

// control is called with an address to connect to, after the name was resolved.
func (g guard) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address %q is not one of an IP network", address)
	}
	if !g.allows(to.Addr()) {
		return fmt.Errorf("the address %s is not public: allow its network, if it is meant", to.Addr())
	}
	return nil
}

func (g guard) allows(a netip.Addr) bool {
	a = a.Unmap()
	within := embedded(a)
	for _, network := range g {
		if network.Contains(a) || network.Contains(within) {
			return true
		}
	}
	return isPublic(a) && isPublic(within)
}

// nat64 is the prefix under which a translator embeds IPv4 addresses, so that
// hosts without IPv4 reach them.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// embedded returns the IPv4 address that an address embeds, or the address
// itself.
func embedded(a netip.Addr) netip.Addr {
	if !nat64.Contains(a) {
		return a
	}
	all := a.As16()
	return netip.AddrFrom4([4]byte(all[12:]))
}

// special are the networks that are not public, of IPv4 and inside the public
// part of IPv6: loopback, private, shared, link-local, documentation,
// benchmarks, multicast, reserved, and tunnels of IPv4 in IPv6. The services
// that give a machine its credentials are in them, except Azure's.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // Azure
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// global is the public part of IPv6.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func isPublic(a netip.Addr) bool {
	if a.Zone() != "" || a.Is6() && !global.Contains(a) && !nat64.Contains(a) {
		return false
	}
	for _, network := range special {
		if network.Contains(a) {
			return false
		}
	}
	return true
}
