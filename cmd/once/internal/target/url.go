package target

import (
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	variable = regexp.MustCompile(`\$\{([^{}]*)\}`)
	whole    = regexp.MustCompile(`^\$\{[^{}]*\}$`)
	named    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Expand replaces ${NAME} by environment variables. In the user and the
// password it escapes the value, so that a password may contain any character.
// Elsewhere it inserts the value as it is, even if that is the whole URL. A
// variable that is not set is an error.
func Expand(from string) (string, error) {
	secret, _ := userinfo(from)
	user, err := expand(secret, escape)
	if err != nil || secret == "" {
		if err == nil {
			return expand(from, func(s string) string { return s })
		}
		return "", err
	}
	if !strings.Contains(secret, ":") && strings.Count(user, "%3A") > strings.Count(secret, "%3A") {
		return "", refuse("the variable before the @ contains a colon: use one variable each for the user and the password, " +
			"${USER}:${PASSWORD}, or one for the whole URL")
	}
	before, after, _ := strings.Cut(from, secret+"@")
	if before, err = expand(before, func(s string) string { return s }); err != nil {
		return "", err
	}
	after, err = expand(after, func(s string) string { return s })
	return before + user + "@" + after, err
}

func expand(text string, spell func(string) string) (expanded string, err error) {
	expanded = variable.ReplaceAllStringFunc(text, func(found string) string {
		name := found[2 : len(found)-1]
		value, set := os.LookupEnv(name)
		switch {
		case !named.MatchString(name):
			err = refuse("%s is not the name of a variable: write ${NAME}", found)
		case !set:
			err = refuse("the variable %s is not set in the environment", name)
		}
		return spell(value)
	})
	return expanded, err
}

// escape is correct in every part of a URL.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// userinfo matches the part between // and @.
func userinfo(from string) (string, bool) {
	_, rest, ok := strings.Cut(from, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	at := strings.LastIndex(rest, "@")
	if !ok || at < 0 {
		return "", false
	}
	return rest[:at], true
}

func engineOf(scheme string) Engine {
	switch scheme {
	case "postgres", "postgresql":
		return PostgreSQL
	case "mysql", "mariadb":
		return MySQL
	case "sqlite":
		return SQLite
	case "redis", "rediss":
		return Redis
	case "dynamodb":
		return DynamoDB
	case "cosmosdb":
		return CosmosDB
	case "azuretables":
		return AzureTables
	case "nats", "tls":
		return NATS
	}
	return ""
}

// parse never includes the URL in its errors, because it may contain a
// password.
func parse(from string) (*url.URL, error) {
	u, err := url.Parse(from)
	if err != nil {
		return nil, refuse("it cannot be parsed: in the user and the password, write special characters as %%XX, " +
			"or put the value in an environment variable and write ${NAME}")
	}
	if e := engineOf(u.Scheme); e == "" || e != SQLite && !strings.HasPrefix(from, u.Scheme+"://") {
		return nil, refuse("it must begin with postgres://, mysql://, sqlite:, redis://, rediss://, dynamodb://, cosmosdb://, azuretables:// or nats://")
	}
	_, rest, _ := strings.Cut(from, "://")
	end := strings.IndexAny(rest, "/?#")
	if end >= 0 && strings.Contains(rest[end:], "@") && engineOf(u.Scheme) != SQLite {
		return nil, refuse("there is an @ after a /, a ? or a #: in the user and the password, write these as %%2F, %%3F " +
			"and %%23, or put the value in an environment variable and write ${NAME}; elsewhere, write the @ as %%40")
	}
	if strings.Contains(from, "#") { // url.Parse would put the rest into the fragment
		return nil, refuse("it contains a #: write it as %%23")
	}
	for parameter := range strings.SplitSeq(u.RawQuery, "&") {
		switch name, _, found := strings.Cut(parameter, "="); {
		case strings.Contains(name, "%"):
			return nil, refuse("the name of a parameter contains a %%: write it without escapes")
		case parameter != "" && (!found || name == ""):
			return nil, refuse("a parameter is not of the form name=value: in a value, write & as %%26")
		}
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return nil, refuse("the parameters after the ? cannot be parsed: write special characters as %%XX")
	}
	return u, nil
}

// own are the parameters that are not passed to the driver.
type own struct {
	schema, prefix, outbox, slot string
	partition                    time.Duration
	cluster                      bool // of Redis
}

// takeOwn removes our parameters from u.
func takeOwn(u *url.URL) (o own, err error) {
	if engineOf(u.Scheme) == PostgreSQL { // where a + in a parameter stands for itself
		u.RawQuery = strings.ReplaceAll(u.RawQuery, "+", "%2B")
	}
	q := u.Query()
	take := func(name string, engines ...Engine) (value string) {
		if !q.Has(name) {
			return ""
		}
		value = q.Get(name)
		q.Del(name)
		for _, e := range engines {
			if e == engineOf(u.Scheme) {
				return value
			}
		}
		err = refuse("the parameter %s is not for %s", name, engineOf(u.Scheme))
		return value
	}
	o.prefix = take("prefix", PostgreSQL, MySQL, SQLite, Redis, DynamoDB)
	o.schema = take("schema", PostgreSQL, MySQL)
	o.outbox, o.slot = take("outbox", PostgreSQL), take("slot", PostgreSQL, Redis)
	if length := take("partition", PostgreSQL); length != "" && err == nil {
		o.partition, err = time.ParseDuration(length)
		if err != nil || o.partition <= 0 {
			err = refuse("the parameter partition is %q: give a duration, for example 24h", length)
		}
	}
	if cluster := take("cluster", Redis); cluster != "" && err == nil {
		if o.cluster, err = strconv.ParseBool(cluster); err != nil {
			err = refuse("the parameter cluster is %q: write cluster=true, or omit it", cluster)
		}
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return o, err
}
