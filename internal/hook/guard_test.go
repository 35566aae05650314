package hook

import (
	"net/netip"
	"testing"
)

func TestGuard(t *testing.T) {
	for address, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "100.63.255.255": true, "100.128.0.0": true, "172.32.0.1": true,
		"2606:4700::1111": true, "64:ff9b::808:808": true, "::ffff:8.8.8.8": true, "2001:4860:4860::8888": true,

		"0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false, "100.64.0.1": false, "100.100.100.200": false,
		"127.0.0.1": false, "127.255.255.254": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.0.0.192": false, "192.168.1.1": false, "198.18.0.1": false, "224.0.0.1": false, "255.255.255.255": false,
		"168.63.129.16": false,

		"::": false, "::1": false, "::127.0.0.1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"fc00::1": false, "fd00:ec2::254": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "ff02::1": false,
		"64:ff9b::a9fe:a9fe": false, "64:ff9b::7f00:1": false, "64:ff9b:1::808:808": false, "2002:7f00:1::": false,
		"2001::1": false, "2001:db8::1": false, "2606:4700::1111%eth0": false,
	} {
		if got := (guard{}).allows(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

func TestGuardAllowsWhatItIsTold(t *testing.T) {
	g := guard(prefixes("10.1.0.0/16", "fd00:1::/32"))
	for address, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "64:ff9b::a01:203": true, "fd00:1::5": true, "8.8.8.8": true,
		"10.2.0.1": false, "64:ff9b::a02:1": false, "fd00:2::5": false, "169.254.169.254": false,
	} {
		if got := g.allows(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
	if err := g.control("tcp", "no address", nil); err == nil {
		t.Error("what cannot be read is allowed")
	}
}
