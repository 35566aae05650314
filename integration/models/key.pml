/*
 * The life of a key: claim, lease, extend, take over, ask, settle, release, park,
 * forget, with a clock that is learned. docs/models.md explains it.
 *
 * Two callers have the same delivery. Each does a step outside, with Do, and then
 * ends the work in a transaction, with DoTx: these are the two keys. A reconciler
 * asks about what is unknown, and two people decide about what is parked, and about
 * what is unknown for long and nobody calls again. The other system can be asked
 * (ASK), honours keys (KEYED), or does neither (PARK).
 *
 * Time is counted in ticks. A process knows it within an interval of W ticks, at a
 * store whose clock is learned: whoever writes an end writes it up to W late, and
 * whoever compares one sees up to W less. left, keep and age are as the true time
 * has them, and the interval is in reads() and late().
 *
 * FAULTS bounds crashes, lost requests and replies, errors, and leases that a living
 * holder fails to extend. After them nothing fails: a run then ends, and a caller
 * without an answer at its end is an invalid end state. That is the law that all
 * drains. A lease is extended once at most, so work ends.
 *
 * Left out: rejections and inputs (any answer is like another), Expired, Wait and
 * Join, quotas, sealing, transactions in flight on a key (the store makes them wait),
 * commits of one conditional request that are late, claims that arrive after their
 * caller has left, reopening, and archives. A request arrives at the other system
 * at most S ticks after the end of its attempt, as SettleTime declares. KeyValidFor
 * is declared shorter than the other system keeps keys, by the longest attempt and
 * S. A key is kept for longer than a lease and S, and forgotten once at most.
 */
#ifndef FAULTS
#define FAULTS 2
#endif
#define CALLERS 2
#define L 2             /* Policy.Lease */
#define S 1             /* Operation.SettleTime */
#ifndef W
#define W 1             /* width of what is known of the time */
#endif
#define K 3             /* Policy.KeepKey */
#define KVF 2           /* Operation.KeyValidFor */
#ifdef KEY_VALID_TO_THE_END
#define V KVF           /* how long the other system honours a key */
#else
#define V (KVF+W+2*L+S)
#endif
#define A 6             /* more attempts than there can be */

#define EFFECT 1        /* in the other system: at most one effect */
#define ANSWER 2        /* what is done has had its effect, and everybody gets its answer */
#define ROWS 3          /* in the database: exactly once, after the step */
#define STALE 4         /* only the holder of the current attempt settles it */
#define LEASE 5         /* no lease lapses while its holder relies on it */
#define FORGOTTEN 6     /* nothing is forgotten inside its time, or while a request can arrive */
#define DECISION 7      /* a person who did not decide is told so, until the next attempt begins */
#define DRAINS 8        /* no assertion: every caller gets an answer */
#ifndef LAW
#define LAW 0
#endif
#define law(n, c) assert(LAW > 0 && LAW != n || (c))

mtype = { ABSENT, RUN, UNK, PARKED, DONE };
mtype = { ASK, KEYED, PARK }; mtype kind;

mtype st = ABSENT;              /* the record: Unknown is UNK, or RUN with a lapsed lease */
byte att, own, ans, by, age;    /* attempt, owner, outcome, which person decided, ticks since the first claim */
short left, keep;               /* ticks until the lease and the key end */

byte hold[CALLERS+1];           /* ticks that a caller counts on its lease, from before its request */
byte cur[CALLERS+1];            /* the attempt that its token has claimed */
bool busy[CALLERS+1], more[CALLERS+1], rest[CALLERS+1];  /* it works; it may extend; it waits for the next tick */

bool fly[A+1], land[A+1];       /* the request of an attempt is on its way; has arrived */
short may[A+1];                 /* ticks until its attempt ends */
byte effects, what, know;       /* in the other system; whose answer; ticks that it knows the key */

byte kept, told, life;          /* ghosts: ticks to be kept; the answer that was told; how often it was forgotten */
bool charged;                   /* ghost: the step has had its effect */
byte own1, rows, faults = FAULTS; /* the second key, and the rows of its transaction */

/* The two ends of what is known of the time. Which is safe depends on the question. */
inline reads(x) { if :: x = 0 :: x = W fi }
#ifdef LAPSES_AT_THE_LATEST_TIME
#define lapsed(r) (st == RUN && left - (r) <= 0)
#else
#define lapsed(r) (st == RUN && left + (r) <= 0)
#endif
#ifdef FORGETS_AT_THE_LATEST_TIME
#define forgettable(r) (keep - (r) <= 0)
#else
#define forgettable(r) (keep + (r) <= 0)
#endif
#ifdef SETTLES_AT_THE_EARLIEST_TIME
#define unknownAt(w) (0-(w))
#else
#define unknownAt(w) (w)
#endif

#define unknown(r) (st == UNK || lapsed(r))
#ifdef NO_SETTLE_TIME
#define sureAt(r) true
#else
#define sureAt(r) (left + (r) + S <= 0)
#endif

#if defined(NO_FENCE)
#define fenced(a, o) true
#elif defined(NO_TOKEN)
#define fenced(a, o) (att == (a) && att > 0)
#else
#define fenced(a, o) (att == (a) && own == (o) && att > 0)
#endif
#define mine ((st == RUN || st == UNK) && own == tok && cur[me] == att)     /* the claim of this call */
#ifdef EXTENDS_WHAT_MAY_BE_OVER
#define stillHeld true
#else
#define stillHeld (hold[me] > 0)                                    /* when the extension is confirmed */
#endif
#define counts(c) (busy[c] && cur[c] == att && hold[c] > 0)        /* it relies on its lease */
#define notSurprised (st != RUN || !(counts(1) || counts(2)))
#define open (st == RUN || st == UNK || st == PARKED)

/* With STEPS, the verifier prints each change of the record, in the numbers of
   step.go. Histories of real code are compared with them. */
#ifdef STEPS
bool took, slow;        /* the attempt took over an unknown one; it was reported after its end */
#define isOf(c) (own > 0 && (own - 1) % CALLERS + 1 == (c))
#define actor(c, p) ((p) > 0 -> 2 : (isOf(c) -> 0 : 1))
#define state(s, zone) ((s) == ABSENT -> (att == 0 -> 0 : 1) : ((s) == RUN -> (left > (zone) -> 2 : 3) : \
	((s) == UNK -> 4 : ((s) == PARKED -> 5 : 6))))
#define early ((st == RUN && left <= 0 || st == UNK) && left > -S && !slow)
#define step(who, verb, from, to, again, odd) printf("step %d %d %d %d %d %d %d\n", \
	(kind == ASK -> 0 : (kind == KEYED -> 1 : 2)), who, verb, from, to, again, odd)
#define claims(o) step(0, 0, state(st, 0), 2, 0, (att > 0 && own == (o))); took = (st != ABSENT); slow = false
#define extends step(0, 1, state(st, -W), 2, 0, 0)
#define settles(c, p, to) step(actor(c, p), 2, state(st, 0), ((to) == ABSENT -> 1 : state(to, 0)), \
	((to) == ABSENT && took && (p) == 0 && isOf(c)), ((to) == ABSENT && (p) == 0 && !isOf(c) && early)); slow = (slow || left <= 0)
#define forgets step(0, 3, state(st, 0), 0, 0, (kept > 0)); took = false; slow = false
#define commits step(0, 4, 0, 6, 0, 0)
#else
#define claims(o)
#define extends
#define settles(c, p, to)
#define forgets
#define commits
#endif

/* settle ends the attempt of a fence, and says in ok whether it was accepted and in
   did whether it changed the record. d is the answer, p the person. */
inline settle(c, a, o, to, d, p, w) {
	reads(w); ok = false; did = false;
	if
	:: open && fenced(a, o) && !(st == PARKED && to == UNK) ->
		law(STALE, att == a && own == o);
		settles(c, p, to);
		ok = true; did = true;
		st = to; by = p; left = 0; keep = 0; kept = 0; ans = 0;
		if
		:: to == UNK -> left = unknownAt(w)
		:: to == DONE || to == ABSENT -> keep = K + w; kept = K; ans = d
		:: else
		fi
	:: (st == ABSENT || st == DONE) && st == to && att == a && own == o && (to == ABSENT || ans == d) -> ok = true
	:: else
	fi
}

#define canArrive(a) (fly[a] && may[a] > -S)
#define some(f) (f(1) || f(2) || f(3) || f(4) || f(5) || f(6))
#define canSend(c) (busy[c] && hold[c] > 0)
#define nothingArrives (!some(canArrive) && !canSend(1) && !canSend(2))

#define fault atomic { faults > 0 -> faults-- }

/* ask asks about the record that was read as attempt fa of fo. */
inline ask(c) {
	atomic { yes = (effects > 0); d = what }
	atomic {
		if
		:: yes -> settle(c, fa, fo, DONE, d, 0, r)
		:: !yes && sure -> settle(c, fa, fo, ABSENT, 0, 0, r)
		:: else
		fi;
		yes = false; sure = false; fa = 0; fo = 0; d = 0; ok = false; did = false; r = 0
	}
}

inline hear() {
	law(ANSWER, effects == 1 && ans == what && (told == 0 || told == ans));
	told = ans; charged = true; busy[me] = false; cur[me] = 0; hold[me] = 0; tok = 0; take = 0; d = 0; to = ABSENT
}

proctype Caller(byte me) {
	byte tok, take, fa, fo, d, r; bool sure, yes, ok, did; mtype to = ABSENT;
call:	atomic { cur[me] = 0; busy[me] = false; tok = 0; take = 0; to = ABSENT; hold[me] = 0; d = 0;
		me == 1 || att + life > 0 };
claim:	atomic {
		reads(r);
		if
		:: st == DONE -> hear(); r = 0; goto tx
		:: st == PARKED -> r = 0; goto parked
		:: mine -> r = 0; busy[me] = true; goto won
		:: st == ABSENT && att > 0 && own == tok -> r = 0; goto call    /* released since: the claim is late */
		:: st == ABSENT && !(att > 0 && own == tok) || (!mine && unknown(r) && take == att) ->
			reads(r);
			claims(tok);
			if :: att == 0 -> age = 0 :: else fi;
			att++; tok = me + CALLERS*life; own = tok; st = RUN; left = L + r; keep = 0; kept = 0; by = 0; r = 0;
			cur[me] = att; more[me] = true; busy[me] = true;
			if :: hold[me] = L :: hold[me] = L-1 fi;        /* the claim was quick, or took a tick */
			if
			:: goto won
			:: fault; goto claim            /* the reply is lost */
			:: fault; goto call             /* the caller dies */
			fi
		:: !mine && st == RUN && !lapsed(r) -> r = 0; rest[me] = true; goto await
		:: !mine && unknown(r) && take != att && kind == ASK -> law(LEASE, notSurprised);
			fa = att; fo = own; sure = sureAt(r); r = 0
		:: !mine && unknown(r) && take != att && kind == PARK -> law(LEASE, notSurprised);
			fa = att; fo = own; r = 0; goto park
		:: !mine && unknown(r) && take != att && kind == KEYED && age + r > KVF -> law(LEASE, notSurprised);
			fa = att; fo = own; r = 0; goto park
		:: !mine && unknown(r) && take != att && kind == KEYED && age + r <= KVF -> law(LEASE, notSurprised);
			take = att; r = 0; goto claim
		fi };
	ask(me);
	rest[me] = true;
#ifdef WAITS_FOR_THE_HOLDER
#define waited (st != RUN && st != UNK)
#else
#define waited (st != RUN && st != UNK || !rest[me] || left <= -(S+W))
#endif
await:	atomic { waited -> rest[me] = false; goto call };
park:	atomic { settle(me, fa, fo, PARKED, 0, 0, r); fa = 0; fo = 0; r = 0; ok = false; did = false; goto call };
parked:	atomic { st != PARKED -> goto call };

won:	atomic {                          /* under attempt cur[me] */
		reads(r);
		if
		:: take > 0 && age + r > KVF -> r = 0; to = PARKED; goto settled
		:: else
		fi;
		if
		:: hold[me] == L
#ifdef EXTENDS_A_LAPSED_LEASE
		:: hold[me] < L && fenced(cur[me], tok) && lapsed(r) -> extends; reads(r); st = RUN; left = L + r; hold[me] = L
#endif
		:: hold[me] < L && stillHeld && fenced(cur[me], tok) && st == RUN && !lapsed(r) ->
			extends; reads(r); left = L + r; hold[me] = L; busy[me] = true
		:: hold[me] < L && !(stillHeld && fenced(cur[me], tok) && st == RUN && !lapsed(r)) ->
			r = 0; to = (take > 0 -> UNK : ABSENT); goto settled
		fi;
		r = 0 };
work:	atomic {
		if
		:: hold[me] > 0 -> fly[cur[me]] = true; may[cur[me]] = hold[me]
		:: fault;                               /* NotDone */
#ifdef NOT_DONE_FREES
			to = ABSENT; goto settled
#else
			to = (take > 0 -> UNK : ABSENT); goto settled
#endif
		:: fault; goto call
		:: hold[me] == 0 -> goto failed
		fi };
reply:	atomic {
		if
		:: land[cur[me]] -> d = (kind == KEYED -> what : cur[me]); to = DONE; goto settled
		:: !land[cur[me]] && (hold[me] == 0 || !fly[cur[me]]) -> goto failed
		:: fault; goto failed                   /* an error that says nothing */
		:: fault; goto call
		:: more[me] && hold[me] < L && hold[me] > 0 -> goto extend
		fi };
extend:	atomic {
		reads(r); more[me] = false;
		if
		:: fenced(cur[me], tok) && st == RUN && !lapsed(r) ->
			extends; reads(r); left = L + r; hold[me] = L; busy[me] = true; may[cur[me]] = L
		:: else -> hold[me] = 0
		fi;
		r = 0; goto reply };
failed:	atomic { may[cur[me]] = (may[cur[me]] > 0 -> 0 : may[cur[me]]); land[cur[me]] = false;
		to = (kind == PARK -> PARKED : UNK) };
settled: atomic {
		hold[me] = 0;
		settle(me, cur[me], tok, to, d, 0, r); r = 0; did = false;
		if
		:: fault; ok = false; goto settled      /* the reply is lost */
		:: to == DONE && ok -> hear(); ok = false; goto tx
		:: !(to == DONE && ok) -> ok = false; goto call
		fi };


#ifdef ROWS_APART
tx:	if :: own1 == 0 -> rows++ :: else fi;
	if :: fault; goto call :: own1 = me fi;
#else
tx:	atomic {
		law(ROWS, charged);
		if :: own1 == 0 -> commits; own1 = me; rows++ :: else fi;
		if :: true :: fault; goto tx :: fault; goto call fi };
#endif
	law(ROWS, rows == 1)
}

proctype Reconciler() {
	byte fa, fo, d, r; bool sure, yes, ok, did;
end:	do
	:: atomic { kind == ASK; reads(r);
		if
		:: unknown(r) && (!rest[0] || left <= -(S+W)) -> fa = att; fo = own; sure = sureAt(r); rest[0] = true; r = 0
		:: else -> r = 0; goto end
		fi };
	   ask(0)
	od
}

proctype Person(byte me) {
	byte fa, fo, d, r; bool yes, ok, did, first;
end:	do
	:: atomic { st == PARKED || kind == KEYED && unknown(0) && left <= -(S+W) -> fa = att; fo = own };
	   atomic { nothingArrives -> yes = (effects > 0); d = what };
	   atomic {
		if
		:: yes -> settle(0, fa, fo, DONE, d, me, r)
		:: !yes -> settle(0, fa, fo, ABSENT, 0, me, r)
		fi;
		r = 0; first = did; did = false; yes = false; d = 0 };
	   atomic {
#ifdef TELLS_EVERYBODY
		if
		:: ok -> law(DECISION, first || att != fa)
#else
		if      /* the reason tells who was first, until the next attempt begins */
		:: ok && !(att == fa && by != me) -> law(DECISION, first || att != fa)
#endif
		:: else
		fi;
		fa = 0; fo = 0; first = false; ok = false }
	od
}

inline arrive(a) {
	fly[a] = false; may[a] = 0; land[a] = (cur[1] == a || cur[2] == a);
	if
	:: kind == KEYED && know > 0            /* the answer of the first */
	:: else -> effects++; know = (kind == KEYED -> V : 0); what = a
	fi;
	law(EFFECT, effects <= 1)
}

#define arrives(a) :: atomic { canArrive(a) -> arrive(a) }
#define isLost(a) :: atomic { fly[a] && faults > 0 -> faults--; fly[a] = false }

proctype Elsewhere() {
end:	do
	arrives(1) arrives(2) arrives(3) arrives(4) arrives(5) arrives(6)
	isLost(1) isLost(2)
	od
}

#define about(c) (busy[c] && hold[c] <= 1)  /* a holder that is late from here on has stalled */
#define stall(c) faults = faults - about(c); busy[c] = (busy[c] && hold[c] > 1)
#define leased (st == RUN || st == UNK)
#define flies(a) fly[a]
#define ended (st == DONE || st == ABSENT && att > 0)
#define ticks (leased && left > -(S+W) || ended && keep > -W || hold[1] + hold[2] + know > 0 || some(flies))
#define down(x, to) x = (x > (to) -> x - 1 : x)
#define way(a) may[a] = (fly[a] -> may[a] - 1 : 0); fly[a] = (fly[a] && may[a] > -S); may[a] = (fly[a] -> may[a] : 0)

proctype Time() {
end:	do
	:: d_step { ticks && faults >= about(1) + about(2) ->
		stall(1); stall(2); rest[0] = false; rest[1] = false; rest[2] = false;
		left = (leased && left > -(S+W) -> left - 1 : left);
		keep = (ended && keep > -W -> keep - 1 : keep);
		age = (kind == KEYED && att > 0 && age <= KVF -> age + 1 : age);
		down(hold[1], 0); down(hold[2], 0); down(know, 0); down(kept, 0);
		way(1); way(2); way(3); way(4); way(5); way(6) }
	od
}

proctype Janitor() {
end:	do
	:: d_step { life == 0 && ended && (forgettable(0) || forgettable(W)) ->
		law(FORGOTTEN, kept == 0 && !some(canArrive));
		forgets;
		st = ABSENT; att = 0; own = 0; ans = 0; by = 0; keep = 0; age = 0; effects = 0; what = 0; know = 0; told = 0; life++;
		land[1] = false; land[2] = false; land[3] = false; land[4] = false; land[5] = false; land[6] = false }
	od
}

init { atomic {
#ifdef KIND
	kind = KIND;
#else
	if :: kind = ASK :: kind = KEYED :: kind = PARK fi;
#endif
	run Caller(1); run Caller(2);
#ifndef NOBODY  /* decides */
	run Person(1);
#endif
#ifdef RECONCILER
	run Reconciler();
#endif
#ifdef TWO_PEOPLE
	run Person(2);
#endif
	 run Elsewhere(); run Time(); run Janitor()
} }
