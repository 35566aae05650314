package serve

import (
	"regexp"
	"strings"
)

// settings maps fields of the library to settings of the file, by section.
// Users of once serve know only the file.
var settings = map[string]map[string]string{
	"relay": {"Batch": "relay.batch", "MaxBytes": "the size of a batch", "KeepFor": "relay.keep_for",
		"Lease": "relay.lease", "PublishTime": "relay.publish_time", "StopTime": "stop", "Poll": "relay.poll", "Then": "relay.then",
		"OnStuck": "relay.on_stuck", "Retry": "relay.retry", "First": "first", "Limit": "limit"},
	"janitor": {"Every": "janitor.every", "Batch": "janitor.batch", "BatchTime": "the time of a batch", "Share": "janitor.share",
		"KeepShelved": "janitor.keep_shelved", "KeepPublished": "janitor.keep_published", "KeepArchived": "janitor.keep_archived"},
	"reconcile": {"Every": "reconcile.every", "AskTime": "reconcile.timeout", "AtOnce": "at_once", "PerSecond": "per_second",
		"Operations": "operations", "Operation": "operation", "Name": "name", "AllowHTTP": "reconcile.allow_http, or --allow-http",
		"KeyValidFor": "key_valid_for", "SettleTime": "settle", "KeepOutcome": "keep_outcome", "KeepKey": "keep_key",
		"OnUnknown": "policy", "Park": "park", "Resend": "resend", "Lookup": "ask"},
	"webhook": {"Source": "webhook.source", "Timeout": "webhook.timeout", "Concurrent": "webhook.concurrent",
		"Default": "[webhook.default]", "Topics": "[webhook.topics]", "AllowHTTP": "webhook.allow_http"},
	"eventgrid": {"Source": "eventgrid.source", "Endpoint": "eventgrid.endpoint", "Timeout": "eventgrid.timeout", "Key": "eventgrid.key",
		"AllowHTTP": "eventgrid.allow_http"},
}

var (
	word   = regexp.MustCompile(`[A-Za-z]+`)
	within = regexp.MustCompile(`(?:once|broker): invalid: (?:(?:outbox|janitor|reconcile|webhookbroker): )?|: declare steps with Under`)
)

// inFile replaces the names of fields in an error of the library by those of
// settings.
func inFile(section string, err error) string {
	text := word.ReplaceAllStringFunc(within.ReplaceAllString(err.Error(), ""), func(found string) string {
		if name := settings[section][found]; name != "" {
			return name
		}
		return found
	})
	return strings.TrimSpace(text)
}
