/*
 * The hand-over of a lane between relays, with holds and parks, and the presence of
 * relays. docs/models.md explains it.
 *
 * One lane has message 0 of one ordering key, and 1 and 2 of another, which are put
 * in this order. Two relays lease the lane, learn what is held in it, read what is
 * pending in one snapshot, or only the first of it, look at what people have decided, and publish one message
 * at a time. A person parks one message, and replays or discards what is stuck.
 *
 * ok is the lease as its relay counts it, which ends before the store lets another
 * relay have the lane. proof is the presence as its relay counts it, which ends
 * before another relay misses it the second time. That both end first is a matter
 * of clocks, which is in the guards of Lapse.
 *
 * FAULTS bounds rejections, lost confirmations, leases that end, locks that break,
 * and deaths. After them nothing fails: when no step is left, nothing may be left in
 * the outbox. That is the law that all drains.
 *
 * Left out: looks within a round, rounds in which nothing gets through and that leave
 * their messages pending, topics, batches of several keys (a batch is an order of calls), blame (any message
 * that failed may be held or stuck), delayed messages, Overtaking and Pass, the
 * database's log, stores whose queries may answer late, and the
 * hand-over into queues in one commit. Two relays suffice for a hand-over; a third
 * one is like the first under another ID. Only relay 1 can lose its lock, because
 * the two are alike.
 */
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef PARKS
#define PARKS 1         /* how often a person parks */
#endif
#define key(m) (((m) + 1) / 2)
#define bit(m) (1 << (m))
#define all(k) ((k) == 0 -> 1 : 6)      /* the messages of an ordering key */
#define upTo(m) ((2 << (m)) - 1)
#define before(ms) ((ms) & 1 -> 0 : ((ms) & 2 -> 1 : ((ms) & 4 -> 3 : 7)))
#define first(ms) ((ms) & 1 -> 0 : ((ms) & 2 -> 1 : 2))

#define ORDER 1         /* a message is published after those before it in its ordering key */
#define PARK 2          /* nothing passes a message that was stuck when the relay last looked */
#define OWNER 3         /* a call begins only while the lane is the relay's in the store */
#define LOST 4          /* what is ended was published, or a person discarded it */
#define DRAINS 5        /* when nothing fails any more, all is published or discarded */
#ifndef LAW
#define LAW 0
#endif
#define law(n, c) assert(LAW > 0 && LAW != n || (c))

byte pending, held, stuck, gone;        /* the rows, by state */
byte decided;                           /* which of them a person made held or stuck */
byte published, discarded;              /* what has happened */
byte lane;                              /* the relay with the lease; 0: nobody */
bool lapsed;                            /* that lease */
bool ok[3], proof[3] = true, lock[3] = true;
byte term[3];                           /* terms of the lane, from 1 to 7 */
bool missed;                            /* the other relay has looked and missed the lock of relay 1 */
byte faults = FAULTS;
bool dead[3];

#define fault atomic { faults > 0 -> faults-- }
#define owned (ok[me] && proof[me] && adopted == term[me])
#ifdef NO_FENCE
#define mayChange true
#else
#define mayChange (lane == me)
#endif
#define from (retry -> held : pending)  /* where the messages of this round were read */
#define tryable(k) (held & all(k) && !(stuck & all(k) && first(stuck & all(k)) < first(held & all(k))))
#define toDo(k) (tryable(k) || hasHold(k) && !(stuck & all(k)))
#define hasHold(k) (holds & bit(k) || parked[k] > 0)

#define hold(ms) true; holding(ms); held = held | (ms) & pending; pending = pending & ~(ms)
/* With STEPS, the verifier prints each change in the store, and each call that begins,
   in the numbers of lanestep.go. Histories of real code are compared with them. */
#ifdef STEPS
#define step(who, verb, of, odd) printf("step %d %d %d %d\n", who, verb, of, (odd) != 0)
#else
#define step(who, verb, of, odd)
#endif
#define itself (lane == me -> 0 : 1)
#define rowOf(m) (pending & bit(m) -> 0 : (held & bit(m) -> 1 : (stuck & bit(m) -> 2 : 3)))
#define leases step(0, 0, (lane == 0 -> 0 : (lane == me -> (lapsed -> 2 : 1) : 3)), 0)
#define releases step(itself, 1, (lapsed -> 2 : 1), 0)
#define frees step(1, 1, (lapsed -> 2 : 1), proof[1])
#define sends(m) step(itself, 2, rowOf(m), all(key(m)) & (upTo(m) - bit(m)) & ~(published | discarded))
#define holding(ms) step(itself, ((ms) & pending -> 3 : 9), 0, 0)
#define sticks(ms, of) step(itself, ((ms) -> 4 : 9), of, 0)
#define ends(ms) step(itself, 5, (retry -> 1 : 0), (ms) & ~published)
#define decides(verb, of) step(2, verb, of, 0)

inline stuckBy(k, ms) { if :: ms & all(k) -> parked[k] = 1 + first((ms) & all(k)) :: else fi }

/* look reads what people have decided. */
inline look(onlyStuck) {
	d_step {
#ifndef FORGETS_WHAT_IS_STUCK
		stuckBy(0, decided & stuck); stuckBy(1, decided & stuck);
#endif
		if :: !onlyStuck && decided & held & all(0) -> holds = holds | 1 :: else fi;
		if :: !onlyStuck && decided & held & all(1) -> holds = holds | 2 :: else fi;
		known = stuck }
}

/* learn reads what is held in the lane. */
inline learn() {
	d_step { t = term[me]; holds = 0; parked[0] = 0; parked[1] = 0;
		if :: held & all(0) -> holds = holds | 1 :: else fi; if :: held & all(1) -> holds = holds | 2 :: else fi };
	d_step { stuckBy(0, stuck); stuckBy(1, stuck) };
	d_step { if :: held & all(0) -> holds = holds | 1 :: else fi; if :: held & all(1) -> holds = holds | 2 :: else fi;
		adopted = t; t = 0 }
}

inline sent() {
	d_step { if
	:: unsent && mayChange && (unsent & from) ->
		law(LOST, published & unsent); ends(unsent);
		pending = pending & ~unsent; held = held & ~unsent; gone = gone | unsent; decided = decided & ~unsent
#ifndef NO_DOUBT
	:: unsent && !(mayChange && (unsent & from)) -> ok[me] = false; term[me] = term[me] % 7 + 1
#endif
	:: else
	fi;
	unsent = 0 }
}

proctype Relay(byte me) {
	byte adopted = 9, holds, parked[2], chunk, failed, waits, unsent, known, t, m;
	bool retry;

lease:	atomic { me == 1 || term[1] > 0; !ok[me] && proof[me] && (lane == 0 || lane == me || lapsed) || !proof[me];
		if
		:: !proof[me] -> proof[me] = true; lock[me] = true; missed = (me == 1 -> false : missed);
			/* under another ID: what the former one has is released */
			if :: lane == me -> ok[me] = false; releases; lane = 0; lapsed = false :: else fi
		:: else
		fi;
		lane == 0 || lane == me || lapsed; leases;
		lane = me; lapsed = false; ok[me] = true; term[me] = term[me] % 7 + 1 };
#ifdef WAKES_FOR_WHAT_IS_PENDING
#define toWake pending
#else
#define toWake (pending || toDo(0) || toDo(1))
#endif
idle:	atomic {
		if
		:: !(ok[me] && proof[me]) || toWake
		:: faults > 0 && lane == me -> faults--; releases; ok[me] = false; lane = 0; lapsed = false  /* to another one */
		fi;
		if :: !(ok[me] && proof[me]) -> goto lease :: else fi };
#ifdef NO_TERM
	if :: adopted == 9 -> learn() :: else -> adopted = term[me] fi;
#else
	if :: adopted != term[me] || !(pending || hasHold(0) || hasHold(1)) -> learn() :: else fi;
#endif
	retry = false;
#ifdef LOOKS_BEFORE_IT_READS
	look(false); chunk = pending;
#else
	if :: chunk = pending :: chunk = bit(first(pending)) & pending fi; look(false);
#endif
	d_step {        /* what has a hold waits */
		if :: hasHold(0) && mayChange -> hold(chunk & all(0)) :: else fi;
		if :: hasHold(1) && mayChange -> hold(chunk & all(1)) :: else fi;
		if :: hasHold(0) -> chunk = chunk & ~all(0) :: else fi;
		if :: hasHold(1) -> chunk = chunk & ~all(1) :: else fi };
carry:	do
	:: atomic { chunk & ~waits -> m = first(chunk & ~waits);
		if
		:: owned && !(parked[key(m)] > 0 && m >= parked[key(m)] - 1) ->
			law(OWNER, lane == me);
			law(PARK, !(stuck & known & all(key(m)) & upTo(m))); sends(m)
		:: else -> waits = waits | all(key(m)); m = 0; goto carry
		fi };
	   if                                   /* the call; the process may stall before the message arrives */
	   :: atomic { law(ORDER, !(all(key(m)) & (upTo(m) - bit(m)) & ~(published | discarded)));
		published = published | bit(m);
		if
		:: sent(); unsent = bit(m); chunk = chunk & ~bit(m); m = 0
		:: fault; goto fails            /* the confirmation is lost */
		fi };
	      if :: unsent & 2 -> sent() :: true fi    /* it is settled while the next one is published, or before */
#ifdef ENDS_WHAT_WAS_REJECTED
	   :: atomic { fault; sent(); unsent = bit(m); chunk = chunk & ~bit(m); m = 0 }
#else
	   :: atomic { fault; goto fails }
#endif
	   :: atomic { faults > 0 && !dead[1] && !dead[2] -> faults--; dead[me] = true; goto dies }
	   fi; goto carry;
fails:	   atomic { failed = failed | bit(m); chunk = chunk & ~bit(m);
#ifndef SKIPS_WITHOUT_ORDER
		waits = waits | all(key(m));
#endif
		m = 0 }
	:: atomic { !(chunk & ~waits); break }
	od;
	sent();
	if
	:: failed && !retry ->
		atomic {        /* those that failed, and with them the rest of their keys */
			if :: failed & all(0) -> failed = failed | chunk & all(0); holds = holds | 1 :: else fi;
			if :: failed & all(1) -> failed = failed | chunk & all(1); holds = holds | 2 :: else fi;
			if
			:: true
			:: t = bit(first(failed)); parked[key(first(failed))] = first(failed) + 1;      /* it failed too often */
				t = (mayChange -> t & pending : 0); sticks(t, 0);
				stuck = stuck | t; decided = decided & ~t; pending = pending & ~t; t = bit(first(failed));
				failed = failed & ~t; t = 0
			fi };
		d_step { if :: mayChange -> hold(failed) :: else fi;
			chunk = 0; failed = 0; waits = 0 }
	:: else -> d_step {
		if
		:: failed & held && mayChange -> t = bit(first(failed & held)); sticks(t, 1);   /* it failed too often, too */
			stuck = stuck | t; decided = decided & ~t; held = held & ~t; parked[key(first(t))] = first(t) + 1
		:: true
		fi;
		t = 0; chunk = 0; failed = 0; waits = 0 }
	fi;
	if :: retry -> retry = false; goto idle :: else fi;

	if                                              /* what is held is tried again */
	:: d_step { hasHold(0) -> t = 0 }
	:: d_step { hasHold(1) -> t = 1 }
	:: d_step { !hasHold(0) && !hasHold(1) -> t = 0 }; goto idle
	fi;
	chunk = held & all(t);
#ifndef RETRIES_BESIDE_PENDING
	d_step { waits = chunk; chunk = chunk & before(pending & all(t)) };
#else
	waits = chunk;
#endif
	look(true);
	if
	:: d_step { waits && !chunk -> /* earlier ones are pending, and join */
		if :: mayChange -> hold(all(t) & before(waits)) :: else fi; waits = 0; t = 0 }; goto idle
	:: d_step { !(waits && !chunk) -> waits = 0 }
	fi;
	if
	:: d_step { parked[t] > 0 && (chunk & bit(parked[t]-1) || !(chunk & upTo(parked[t]-1))) ->
		/* has a person decided? */
		parked[t] = 0; stuckBy(t, stuck); chunk = 0; t = 0 }
	:: d_step { parked[t] == 0 && !chunk -> holds = holds & ~bit(t); t = 0 }
	:: d_step { else -> if :: parked[t] > 0 -> chunk = chunk & upTo(parked[t]-1) :: else fi };
#ifndef RETRIES_AFTER_ONE_READ
		if :: d_step { first(chunk) != first(held & all(t)) -> chunk = 0; t = 0 }; goto idle :: else fi; /* replayed */
#endif
		t = 0; retry = true; goto carry
	fi;
	goto idle;
dies:	atomic { ok[me] = false; proof[me] = false; lock[me] = false;
		holds = 0; parked[0] = 0; parked[1] = 0; chunk = 0; failed = 0; waits = 0; unsent = 0; known = 0; m = 0 }
}

proctype Lapse() {
	byte r;
end:	do
	:: atomic { ok[1] && faults > 0 -> faults--; ok[1] = false }
	:: atomic { ok[2] && faults > 0 -> faults--; ok[2] = false }
#ifdef LEASE_FROM_THE_REPLY
	:: atomic { lane > 0 && !lapsed && faults > 0 -> faults--; lapsed = true }
#else
	:: d_step { lane > 0 && !ok[lane] && !lapsed -> lapsed = true }
#endif
#ifdef PRESENCE
	:: atomic { lock[1] && faults > 0 -> faults--; lock[1] = false }
	:: d_step { !lock[1] && missed == 0 -> missed = 1 }
	:: d_step { !lock[1] && missed == 1 && proof[1] -> proof[1] = false; ok[1] = false }
#ifdef ONE_LOOK
	:: d_step { missed == 1 && lane == 1 -> missed = 1; frees; lane = 0; lapsed = false }
#else
	:: d_step { missed == 1 && !proof[1] && lane == 1 -> missed = 1; frees; lane = 0; lapsed = false }
#endif
#endif
	od
}

proctype Producer() {
	pending = pending | 1; pending = pending | 2; pending = pending | 4
}

proctype Person() {
	bool parks = PARKS;
end:	do
	:: d_step { parks && pending & 2 -> pending = pending & ~2; decides(6, 0); stuck = stuck | 2; decided = decided | 2; parks = false }
	:: d_step { parks && held & 2 -> held = held & ~2; decides(6, 1); stuck = stuck | 2; decided = decided | 2; parks = false }
	:: d_step { parks && pending & 4 -> pending = pending & ~4; decides(6, 0); stuck = stuck | 4; decided = decided | 4; parks = false }
	:: d_step { stuck & 1 -> stuck = stuck & ~1; decides(7, 2); held = held | 1; decided = decided | 1 }
	:: d_step { stuck & 2 -> stuck = stuck & ~2; decides(7, 2); held = held | 2; decided = decided | 2 }
	:: d_step { stuck & 4 -> stuck = stuck & ~4; decides(7, 2); held = held | 4; decided = decided | 4 }
	:: d_step { stuck & 2 -> stuck = stuck & ~2; decides(8, 2); gone = gone | 2; discarded = discarded | 2 }
	od
}

proctype Watch() { timeout -> law(DRAINS, gone == 7) }

init { atomic { run Relay(1); run Relay(2); run Lapse(); run Producer(); run Person(); run Watch() } }
