package storetest

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/effectively-once/once"
)

func outcomeRules() []rule {
	return []rule{
		{"outcome/exact",
			"An outcome is replayed exactly, whatever its bytes: an empty outcome is an answer.",
			outcomeExact},
		{"outcome/large", "A store keeps an outcome of its limit, which is 1 MiB by default.", outcomeLarge},
		{"outcome/fingerprint",
			"The fingerprint is kept through every end, and after the outcome is forgotten.",
			outcomeFingerprint},
		{"outcome/reason", "A reason is kept as it was given.", outcomeReason},
	}
}

func outcomeExact(b *bench) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	outcomes := map[string]once.Outcome{
		"rejected":       {Rejected: true, Body: []byte("no"), ContentType: "text/plain"},
		"rejected empty": {Rejected: true},
		"omitted":        {Omitted: true, Sum: 7},
		"both":           {Omitted: true, Rejected: true},
		"largest sum":    {Sum: math.MaxUint32},
		"half sum":       {Sum: 1 << 31},
		"type only":      {ContentType: "application/json"},
		"odd type":       {ContentType: `a"b'c\d; charset="ü"`, Body: []byte{}},
		"longest type":   {ContentType: strings.Repeat("x", 255)},
	}
	for _, body := range []string{"", "\x00", "\x00\x00", "\xff", "\xff\xfe", "null", "0", "false", `""`, "{}", " ", "\n", " padded ", `\x41`, "'; --", "%s", "é", string(all)} {
		outcomes[fmt.Sprintf("body %q", body)] = once.Outcome{Body: []byte(body), ContentType: "text/plain", Sum: 1}
	}
	outcomes["nil body"] = once.Outcome{Body: nil, Sum: 1}
	for name, out := range outcomes {
		b.keeps(name, out)
	}
}

func outcomeLarge(b *bench) {
	limit := b.store.Options().MaxOutcome
	body := bytes.Repeat([]byte("0123456789abcde\xff"), limit/16)
	b.keeps(fmt.Sprint(limit, " bytes"), once.Outcome{Body: body, Sum: 5})
}

// keeps checks that Get and a lost claim return an outcome unchanged.
func (b *bench) keeps(name string, out once.Outcome) {
	k := b.key(unique())
	set := done(b.own(k, "me", long))
	set.Outcome = out
	b.must("Settle of "+name, b.store.Settle(b, set))
	for _, rec := range []once.Record{b.get(k), b.claim(b.request(k, "rival", long))} {
		if rec.Status != once.Done || !sameOutcome(rec.Outcome, out) {
			b.failf("the outcome %s came back as %s", name, show(rec))
		}
	}
}

func outcomeFingerprint(b *bench) {
	for i, print := range [][]byte{nil, {0}, {0, 0xff, 0}, bytes.Repeat([]byte{0xfe}, 32), []byte("text")} {
		prefix := fmt.Sprint(i, "-")
		for _, status := range []once.Status{once.Unknown, once.Parked, once.Done} {
			fence := b.ownWithPrint(prefix+status.String(), print)
			b.settle(ending(fence, status))
			b.hasPrint(fence.Key, print)
		}
		expired := done(b.ownWithPrint(prefix+"expired", print))
		expired.KeepOutcome = short
		b.settle(expired)
		b.become(expired.Key, once.Expired)
		b.hasPrint(expired.Key, print)
	}
}

func (b *bench) ownWithPrint(id string, print []byte) once.Fence {
	r := b.request(b.key(id), "me", long)
	r.Fingerprint = print
	rec := b.claim(r)
	b.wantRunning(rec, r, 1)
	return fenceOf(rec)
}

// hasPrint checks the fingerprint in the results of Get and of a lost claim.
func (b *bench) hasPrint(k once.Key, want []byte) {
	for _, rec := range []once.Record{b.get(k), b.claim(b.request(k, "rival", long))} {
		if !bytes.Equal(rec.Fingerprint, want) {
			b.failf("claimed with the fingerprint %q, it is %q when the key is %v", want, rec.Fingerprint, rec.Status)
		}
	}
}

func outcomeReason(b *bench) {
	for i, reason := range []string{"", "it's \"this\"", `back\slash`, "two\nlines\t.", "日本 é 𝒳", " padded ", strings.Repeat("x", 500), "%s $1 ?"} {
		for _, status := range ends {
			set := ending(b.own(b.key(fmt.Sprint(status, i)), "me", long), status)
			set.Reason = reason
			b.settle(set)
			if rec := b.get(set.Key); rec.Reason != reason {
				b.failf("the reason %q of %v came back as %q", reason, status, rec.Reason)
			}
		}
	}
}
