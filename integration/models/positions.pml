/*
 * Positions in a log, with epochs. docs/models.md explains it.
 *
 * A partition has messages 0 and 1 of one ordering key, and 2 of another. Two
 * processes consume it, each for itself: their source knows no owner. Each receives
 * two messages ahead, from where the broker believes that it was. The position is
 * the number of messages that were dealt with. A transaction moves it, under the
 * epoch that its process has opened, together with the effects of the message, or
 * with the message put on the shelf if it failed. Later messages of its ordering key
 * follow it there. A worker takes them from the shelf, in order. One that failed too
 * often is parked: a person has it tried again, or discards a message.
 *
 * FAULTS bounds failures of handlers, lost replies, deaths, and processes that take
 * the partition over although its owner lives. After them nothing fails: when no step
 * is left, every message has been handled. That is the law that all drains.
 *
 * Left out: batches (their transaction is divided into these), keys of messages,
 * attempts and blame, a log that is made anew, which stops a consumer, rebalances in
 * which the broker moves a partition (that is one process that stops, and another
 * that begins), the locks of the shelf's worker, and attempts of it that fail and
 * leave their message there. A person may set the position back once, and discards at
 * most one message.
 */
#ifndef FAULTS
#define FAULTS 2
#endif
#define N 3
#define bit(m) (1 << (m))
#define below(n) ((1 << (n)) - 1)
#define keyOf(m) ((m) < 2 -> 3 : 4)     /* the messages of its ordering key */
#define first(ms) ((ms) & 1 -> 0 : ((ms) & 2 -> 1 : 2))

#define SKIPPED 1       /* a position has nothing before it that was not dealt with */
#define ONCE 2          /* one effect for each message, and again only if a person asks for it */
#define EPOCH 3         /* only the process that opened the position last moves it */
#define ORDER 4         /* the effects of an ordering key are in order */
#define DRAINS 5        /* when nothing fails any more, everything is handled */
#ifndef LAW
#define LAW 0
#endif
#define law(n, c) assert(LAW > 0 && LAW != n || (c))

byte pos, epoch;        /* the row */
byte shelf, done;       /* messages on the shelf; messages whose effect is there */
byte parked, dropped;   /* those on the shelf that a person decides about; those that one has discarded */
byte faults = FAULTS;
byte living, ep[3];     /* processes that live, and the epochs that they have opened */
#define fault atomic { faults > 0 -> faults-- }

inline effect(m) {
	law(ONCE, !((done | dropped) & bit(m)));
	law(ORDER, !(keyOf(m) & below(m) & ~(done | dropped)));
	done = done | bit(m)
}

#define behind(m) (shelf & keyOf(m) & below(m))

/* With STEPS, the verifier prints each change of what the store holds, in the numbers
   of positionstep.go. Histories of real code are compared with them. */
#ifdef STEPS
byte opener;            /* who opened the position last */
#define step(who, verb, of, late) printf("step %d %d %d %d\n", who, verb, of, (late) != 0)
#define opens step((opener == me -> 0 : 1), 0, 0, 0); opener = me
#define moves(to) step((opener == me && ep[me] == epoch -> 0 : 1), 1, to, behind(m))
#define handles(m) step(2, 2, 1, behind(m))
#define parks(m) step(2, 3, 1, behind(m))
#define replays(m) step(3, 4, 2, behind(m))
#define discards(m) step(3, 5, (parked & bit(m) -> 2 : 1), behind(m))
#define setsBack step(3, 6, 0, 0); opener = 0
#else
#define opens
#define moves(to)
#define handles(m)
#define parks(m)
#define replays(m)
#define discards(m)
#define setsBack
#endif

/* deal moves the position past m under epoch ep, and handles m or puts it aside. */
inline deal(m) {
	if
#ifdef NO_EPOCH
	:: pos == at ->
#else
	:: pos == at && epoch == ep[me] ->
#endif
		law(EPOCH, epoch == ep[me]);
		if
		:: inUse && shelf & keyOf(m) & below(m+1) -> shelf = shelf | bit(m); moves(1)     /* it waits for an earlier one */
		:: failed ->            /* perhaps too often, in attempts before */
#ifndef PASSES_WITHOUT_THE_SHELF
			shelf = shelf | bit(m); inUse = true;
			if :: true; moves(1) :: parked = parked | bit(m); moves(2) fi;
#endif
		:: !failed && !(inUse && shelf & keyOf(m) & below(m+1)) -> effect(m); moves(0)
		fi;
		pos = m + 1; moved = true;
		law(SKIPPED, !(below(pos) & ~(done | shelf | dropped)))
#ifdef NO_EPOCH
	:: pos != at && pos == m + 1 -> moved = true            /* taken for its own commit, whose reply was lost */
	:: pos != at && pos != m + 1 -> moved = false
#else
	:: pos == m + 1 && epoch == ep[me] -> moved = true
	:: !(epoch == ep[me] && (pos == at || pos == m + 1)) -> moved = false
#endif
	fi
}

proctype Consumer(byte me) {
	byte at, m, next, ahead; bool inUse, failed, moved, opened, stale;
open:	atomic {
		if      /* the broker's place for this consumer may be before the position, or after it */
		:: next = 0
		:: next = pos
		:: next = (pos < N-1 -> pos + 1 : pos)
		fi;
		ahead = next; opened = false; stale = false; failed = false };
receive: atomic {       /* up to two messages are received before they are handled */
		if
		:: pos == N && next >= N -> goto ended
		:: next < N && ahead < N && ahead - next < 2 -> ahead++; goto receive
		:: ahead > next -> m = next; next++
		:: ahead == next && next == N && pos < N -> next = pos; ahead = pos; goto receive /* it reads again */
		fi };
	if
	:: !opened -> atomic { epoch++; opens; ep[me] = epoch; at = pos; opened = true;
#ifdef FORGETS_THE_SHELF
		inUse = false;
#else
		inUse = (shelf != 0);
#endif
		if
		:: m > at -> next = at;         /* the source is asked to read again from the position */
#ifdef KEEPS_WHAT_WAS_RECEIVED
			if :: ahead > m + 1 -> m = m + 1; stale = true :: else -> ahead = at; goto receive fi
#else
			ahead = at; goto receive
#endif
		:: else
		fi }
	:: else
	fi;
	if :: m < at -> goto receive :: else fi;        /* a duplicate */
handle:	if
	:: failed = false
	:: fault; failed = true
	:: fault; goto dies
	fi;
again:
#ifdef EFFECTS_APART
#define current (pos == at && epoch == ep[me])
	atomic { if :: current && !failed && !(inUse && shelf & keyOf(m) & below(m+1)) -> effect(m) :: else fi };
	if :: true :: fault; goto dies fi;
	atomic { moved = current;
		if :: moved -> pos = m + 1; shelf = shelf | (failed -> bit(m) : 0); inUse = (inUse || failed) :: else fi };
#else
	atomic { deal(m);
		if
		:: true
		:: fault; goto again                    /* the reply is lost, and the call is repeated */
		:: fault; moved = false; goto open      /* it is opened anew to see where it is */
		:: fault; goto dies
		fi };
#endif
	if
	:: atomic { moved -> moved = false; failed = false; at = m + 1;
		if :: stale -> stale = false; ahead = next :: else fi;
		if :: shelf == 0 -> inUse = false :: else fi }; goto receive    /* it looks now and then */
	:: atomic { !moved -> at = 0; ep[me] = 0; opened = false; inUse = false; failed = false; next = 0; ahead = 0; m = 0 }
	fi;
	/* another process has the partition: it waits until that one moves nothing */
	if
	:: atomic { pos == N -> goto ended }
#ifdef STOPS_WHEN_OVERTAKEN
	:: goto ended
#endif
	:: atomic { ep[3-me] != epoch -> goto open }
	:: atomic { fault; goto open }
	fi;
dies:	atomic { if :: living == 1 -> goto open :: else -> living--; goto gone fi };
	/* it is started again, unless the other one lives */
ended:	living--;
gone:	atomic { at = 0; ep[me] = 0; m = 0; next = 0; ahead = 0; inUse = false;
		failed = false; moved = false; opened = false }
}

#define tryable(ms) (shelf & (ms) && !(parked & bit(first(shelf & (ms)))))

proctype Worker() {
end:	do
	:: d_step { tryable(3) -> effect(first(shelf & 3)); handles(first(shelf & 3)); shelf = shelf & ~bit(first(shelf & 3)) }
	:: d_step { tryable(4) -> effect(2); handles(2); shelf = shelf & ~4 }
	:: d_step { faults > 0 && tryable(3) -> faults--; parks(first(shelf & 3)); parked = parked | bit(first(shelf & 3)) }
	:: d_step { faults > 0 && tryable(4) -> faults--; parks(2); parked = parked | 4 }
	od
}

#define replay(m) :: d_step { parked & bit(m) -> parked = parked & ~bit(m); replays(m) }
#define discard(m) :: d_step { discarding && shelf & bit(m) -> discarding = false; discards(m); \
		dropped = dropped | bit(m); shelf = shelf & ~bit(m); parked = parked & ~bit(m) }

proctype Person() {
#ifdef SETS_BACK
	bool setting = true;
#endif
	bool discarding = true;
end:	do
#ifdef SETS_BACK
	:: d_step { setting && pos > 0 && pos < N && shelf == 0 -> setting = false; setsBack; pos = 0; epoch++; done = 0; dropped = 0 }
#endif
	replay(0) replay(1) replay(2)
	discard(0) discard(1) discard(2)
	od
}

proctype Watch() { timeout -> law(DRAINS, (done | dropped) == 7 && shelf == 0) }

init { atomic { living = 2; run Consumer(1); run Consumer(2); run Worker(); run Person(); run Watch() } }
