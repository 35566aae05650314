package main

import "testing"

func TestOtherServersAreRefused(t *testing.T) {
	const variable = "ONCE_BENCH_TEST_DATA"
	for _, c := range []struct {
		announced, got string
		fine           bool
	}{
		{"/var/private/data", "/var/private/data", true},
		{"/var/private/data", "/var/private/data/", true}, // as MariaDB answers
		{"/var/private/data", "/var/lib/postgresql/15/main", false},
		{"", "/var/lib/postgresql/15/main", false},
		{"", "", false},
	} {
		t.Setenv(variable, c.announced)
		if err := checkDirectory("ADDRESS", c.got, variable); (err == nil) != c.fine {
			t.Errorf("a server in %q, where %q was announced: %v", c.got, c.announced, err)
		}
	}
}
