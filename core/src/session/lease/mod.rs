//! The lease clock: until when a session can be relied on.
//!
//! A server answers for itself, and tells the leader which sessions it has heard from only with its answers to
//! the leader's pings. So an answered request proves nothing yet. But requests, pings and their answers travel on
//! one TCP connection between the two servers, each way in order:
//!
//! 1. A heartbeat that is *sent* at least a tick after an earlier request was *answered* reaches the leader after the
//!    leader has sent another ping. Its answer comes behind that ping: once it is here, the follower has sent on that
//!    it had heard of the earlier request.
//! 2. A heartbeat that is sent after that reaches the leader behind what was sent on: once it is answered, the
//!    leader has heard, and will not expire the session before a full timeout has passed since the earlier request.
//!
//! So the second follows the first at once. One alone would do if pings were never late; when what the leader sends is
//! held up and the follower is cut off as it comes through, it would not. The time of sending counts, since the server
//! can't have seen a request before it was sent.

mod arithmetic;

use std::collections::VecDeque;
use std::time::Duration;

use arithmetic::slack;
pub use arithmetic::{DEFAULT_TICK, heartbeat_interval, margin, survivable_outage};
pub(crate) use arithmetic::{choose_tick, reconnect_attempt, reconnect_delay};

use super::retry::backoff;
use crate::env::Moment;

/// A request that the server has answered.
#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: Moment,
    answered: Moment,
}

/// Which rule the clock follows. Only [`Rule::OneTick`] is sound; the others are planted bugs that the
/// simulator has to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Sent at least a tick after the earlier one was answered.
    #[default]
    OneTick,
    /// The latest answered heartbeat counts itself.
    #[cfg_attr(not(feature = "simulation"), allow(dead_code))]
    Latest,
    /// Sent at least a tick after the earlier one was sent.
    #[cfg_attr(not(feature = "simulation"), allow(dead_code))]
    SendToSend,
}

/// Computes a session's deadline from the times at which requests were sent and answered. Pure: it reads no
/// clock.
#[derive(Clone, Debug)]
pub(crate) struct LeaseClock {
    rule: Rule,
    timeout: Duration,
    tick: Duration,
    margin: Duration,
    /// Whether heartbeats are answered by a quorum, and nothing less extends the lease.
    quorum: bool,
    /// The re-attachment that no quorum has answered for yet.
    unproven: Option<Touch>,
    /// The touch that the follower has sent on to the leader, and since when that is known.
    on_its_way: Option<(Touch, Moment)>,
    /// Answered requests of this connection that the leader may not have heard of, oldest first.
    touches: VecDeque<Touch>,
    /// When the last heartbeat that was answered was sent.
    last_sent: Option<Moment>,
    /// Whether that was soon after the one before.
    soon_after: bool,
    deadline: Moment,
}

impl LeaseClock {
    /// Starts the clock at the answer to the connect that made the session.
    pub(crate) fn start(
        rule: Rule,
        sent: Moment,
        answered: Moment,
        timeout: Duration,
        tick: Duration,
    ) -> Self {
        let margin = margin(timeout);
        Self {
            rule,
            timeout,
            tick,
            margin,
            quorum: false,
            unproven: None,
            on_its_way: None,
            touches: VecDeque::from([Touch { sent, answered }]),
            last_sent: None,
            soon_after: false,
            deadline: sent.plus(timeout).minus(margin),
        }
    }

    /// The same clock, for heartbeats that a quorum has to answer.
    pub(crate) fn for_quorum(mut self) -> Self {
        self.quorum = true;
        self
    }

    /// A new connection was attached to the session. That touches the leader directly; what was answered on
    /// the old connection proves nothing any more.
    ///
    /// A leader that has been deposed attaches too, without asking anyone (making a session takes a quorum). So where
    /// a quorum is to answer, the lease goes on as it was until the first heartbeat is answered: whoever commits that
    /// has led since before, and has been touched.
    pub(crate) fn attached(&mut self, sent: Moment, answered: Moment, timeout: Duration, tick: Duration) {
        let smaller = self.timeout.min(timeout);
        self.timeout = timeout;
        self.tick = tick;
        self.margin = margin(timeout);
        let deadline = sent.plus(smaller).minus(margin(smaller));
        let this = Touch { sent, answered };
        if self.quorum {
            self.deadline = self.deadline.min(deadline);
            self.unproven = Some(this);
        } else {
            self.deadline = deadline;
        }
        self.touches.clear();
        self.on_its_way = None;
        self.last_sent = None;
        self.soon_after = false;
        self.touches.push_back(this);
    }

    /// A heartbeat that was sent at `sent` has been answered at `answered`.
    pub(crate) fn answered(&mut self, sent: Moment, answered: Moment) {
        let this = Touch { sent, answered };
        // An attachment touches the leader directly.
        let direct = self.unproven.take();
        let mut heard = None;
        if self.rule == Rule::Latest {
            heard = Some(this);
        }
        while let Some(earlier) = self.touches.front() {
            let since = match self.rule {
                Rule::OneTick => earlier.answered,
                Rule::SendToSend | Rule::Latest => earlier.sent,
            };
            if sent < since.plus(self.tick) {
                break;
            }
            heard = heard.max_by_sent(self.touches.pop_front());
        }
        self.touches.push_back(this);
        // What this heartbeat shows to be on its way is known to have arrived once a later one is answered.
        let confirmed = self.on_its_way.take_if(|(_, since)| sent >= *since).map(|(touch, _)| touch);
        let before = self.last_sent.replace(sent);
        self.soon_after = before.is_some_and(|before| sent < before.plus(self.shortest_interval()));
        if let Some(heard) = heard {
            self.on_its_way = Some((heard, answered));
        }
        if let Some(heard) = confirmed.max_by_sent(direct) {
            self.deadline = heard.sent.plus(self.timeout).minus(self.margin);
        }
    }

    /// When the lease is over.
    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// When to send the next heartbeat: a [`heartbeat_interval`] after the last, or a little later where that
    /// lets it prove one more request. At once where it is the second of a pair, or where the lease has not been
    /// extended since the attachment.
    ///
    /// Where a round trip takes a tick or longer, the second of a pair is itself the first of another, and so on:
    /// then a third waits.
    pub(crate) fn next_heartbeat(&self, last_sent: Moment) -> Moment {
        if self.unproven.is_some() || self.on_its_way.is_some() {
            return last_sent.plus(if self.soon_after { self.shortest_interval() } else { Duration::ZERO });
        }
        let slot = last_sent.plus(heartbeat_interval(self.timeout, self.tick));
        let latest = slot.plus(self.timeout / 40);
        self.touches
            .iter()
            .map(|touch| touch.answered.plus(self.tick))
            .rfind(|provable| *provable <= latest)
            .map_or(slot, |provable| provable.max(slot))
    }

    /// When to send a heartbeat again that an overloaded server refused at `now`, after so many refusals in a row:
    /// soon at first, then at growing distances, but never so late that what is left of the lease would not do for a
    /// few tries more.
    pub(crate) fn ask_again(&self, now: Moment, refusals: u32) -> Moment {
        let first = self.timeout / 240;
        let delay = backoff(first, self.timeout / 24, refusals);
        now.plus(delay.min(self.deadline.since(now) / 8).max(first))
    }

    /// The shortest time between the pairs of heartbeats.
    fn shortest_interval(&self) -> Duration {
        self.timeout / 12
    }

    /// The longest outage that costs nothing, wherever between two heartbeats it begins.
    pub(crate) fn survivable_outage(&self) -> Duration {
        survivable_outage(self.timeout, self.tick)
    }

    /// How long the lease lasts without an answer, wherever between two heartbeats that begins.
    pub(crate) fn slack(&self) -> Duration {
        slack(self.timeout, self.tick)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    pub(crate) fn margin(&self) -> Duration {
        self.margin
    }
}

trait MaxBySent {
    fn max_by_sent(self, other: Option<Touch>) -> Option<Touch>;
}

impl MaxBySent for Option<Touch> {
    fn max_by_sent(self, other: Option<Touch>) -> Option<Touch> {
        match (self, other) {
            (Some(a), Some(b)) => Some(if a.sent >= b.sent { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at(n: u64) -> Moment {
        Moment::from_nanos(0).plus(ms(n))
    }

    #[test]
    fn the_connect_starts_the_clock_at_its_sending() {
        let clock = LeaseClock::start(Rule::OneTick, at(1_000), at(1_050), ms(4_000), ms(200));
        assert_eq!(clock.deadline(), at(4_800));
    }

    #[test]
    fn a_heartbeat_proves_what_was_answered_a_tick_before_it_was_sent() {
        let mut clock = LeaseClock::start(Rule::OneTick, at(0), at(10), ms(4_000), ms(200));
        clock.answered(at(209), at(212));
        assert_eq!(clock.deadline(), at(3_800), "a millisecond too early to prove anything new");
        clock.answered(at(410), at(415));
        assert_eq!(clock.deadline(), at(3_800), "proves the connect, not the heartbeat answered at 212");
        clock.answered(at(416), at(420));
        clock.answered(at(800), at(805));
        assert_eq!(
            clock.deadline(),
            at(209 + 3_800),
            "416 is sent on, and the leader may not have heard yet"
        );
        assert_eq!(clock.next_heartbeat(at(800)), at(800), "another at once");
        clock.answered(at(805), at(808));
        assert_eq!(clock.deadline(), at(416 + 3_800));
        assert!(clock.next_heartbeat(at(805)) > at(1_200), "a pair of them for each interval");
    }

    #[test]
    fn what_was_sent_before_the_proof_came_confirms_nothing() {
        let mut clock = LeaseClock::start(Rule::OneTick, at(0), at(10), ms(4_000), ms(200));
        clock.answered(at(300), at(305));
        clock.answered(at(600), at(900));
        clock.answered(at(899), at(901));
        assert_eq!(clock.deadline(), at(3_800));
        clock.answered(at(901), at(903));
        assert_eq!(clock.deadline(), at(300 + 3_800));
    }

    #[test]
    fn a_stalled_link_that_delivers_two_answers_at_once_proves_nothing_new() {
        let mut clock = LeaseClock::start(Rule::OneTick, at(0), at(5), ms(4_000), ms(200));
        clock.answered(at(600), at(3_000));
        clock.answered(at(1_200), at(3_000));
        assert_eq!(clock.deadline(), at(3_800));
        let mut unsound = LeaseClock::start(Rule::SendToSend, at(0), at(5), ms(4_000), ms(200));
        unsound.answered(at(600), at(3_000));
        unsound.answered(at(1_200), at(3_000));
        unsound.answered(at(3_000), at(3_001));
        assert_eq!(unsound.deadline(), at(600 + 3_800));
    }

    #[test]
    fn a_new_connection_starts_again_with_the_smaller_timeout() {
        let mut clock = LeaseClock::start(Rule::OneTick, at(0), at(5), ms(4_000), ms(200));
        clock.answered(at(1_000), at(1_005));
        clock.attached(at(2_000), at(2_100), ms(2_000), ms(200));
        assert_eq!(clock.deadline(), at(2_000 + 1_800));
        clock.answered(at(2_250), at(2_251));
        assert_eq!(clock.deadline(), at(3_800), "nothing of the old connection counts");
        clock.attached(at(3_000), at(3_001), ms(4_000), ms(200));
        assert_eq!(clock.deadline(), at(3_000 + 1_800), "the smaller until the new heartbeats count");
        clock.answered(at(3_500), at(3_501));
        clock.answered(at(3_501), at(3_502));
        assert_eq!(clock.deadline(), at(3_000 + 3_800));
    }

    #[test]
    fn where_a_quorum_answers_a_new_connection_extends_nothing_by_itself() {
        let clock = LeaseClock::start(Rule::OneTick, at(0), at(5), ms(4_000), ms(200));
        let mut clock = clock.for_quorum();
        assert_eq!(clock.deadline(), at(3_800), "making a session takes a quorum");
        clock.attached(at(2_000), at(2_001), ms(4_000), ms(200));
        assert_eq!(clock.deadline(), at(3_800));
        assert_eq!(clock.next_heartbeat(at(2_001)), at(2_001), "at once");
        clock.answered(at(2_001), at(2_003));
        assert_eq!(clock.deadline(), at(2_000 + 3_800), "whoever committed it had been touched directly");
        clock.attached(at(2_500), at(2_501), ms(2_000), ms(200));
        assert_eq!(clock.deadline(), at(2_500 + 1_800), "a shorter timeout counts at once");
    }

    #[test]
    fn heartbeats_wait_a_little_where_that_proves_more() {
        let clock = LeaseClock::start(Rule::OneTick, at(0), at(3), ms(6_000), ms(1_000));
        assert_eq!(clock.next_heartbeat(at(0)), at(1_003), "a tick after the connect was answered");
        let clock = LeaseClock::start(Rule::OneTick, at(0), at(3), ms(6_000), ms(200));
        assert_eq!(clock.next_heartbeat(at(0)), at(600), "an interval after the last");
    }

    /// Runs the clock for ten timeouts on a network with this round trip, and returns how many heartbeats were sent
    /// for each timeout, and the shortest time that the lease had left when a heartbeat was due, after the first.
    fn pace(timeout: u64, tick: u64, round_trip: u64) -> (f64, Duration) {
        const TIMEOUTS: u64 = 10;
        let mut clock = LeaseClock::start(Rule::OneTick, at(0), at(round_trip), ms(timeout), ms(tick));
        let (mut now, mut last_sent) = (at(round_trip), at(round_trip));
        let (mut sent, mut least) = (0, ms(timeout));
        while now < at(TIMEOUTS * timeout) {
            now = now.max(clock.next_heartbeat(last_sent));
            if now > at(timeout) {
                least = least.min(clock.deadline().since(now));
            }
            last_sent = now;
            now = now.plus(ms(round_trip).max(Duration::from_micros(1)));
            clock.answered(last_sent, now);
            sent += 1;
        }
        (f64::from(sent) / TIMEOUTS as f64, least)
    }

    #[test]
    fn heartbeats_are_often_enough_for_the_outage_that_is_promised() {
        for timeout in [4_000, 6_000, 10_000, 30_000, 40_000] {
            for tick in [1, 50, 200, 500, 1_000, 2_000, 3_000, 5_000, 6_000] {
                for round_trip in [0, 1, 10] {
                    let tick = tick.min(timeout / 2);
                    let (sent, least) = pace(timeout, tick, round_trip);
                    let promised = slack(ms(timeout), ms(tick)).saturating_sub(4 * ms(round_trip + 1));
                    assert!(least >= promised, "{timeout} {tick} {round_trip}: {least:?} of {promised:?}");
                    assert!(sent < 25.0, "{timeout} {tick} {round_trip}: {sent}");
                }
            }
        }
    }

    #[test]
    fn heartbeats_are_spaced_where_a_round_trip_takes_a_tick_or_longer() {
        for (timeout, tick, round_trip) in [
            (30_000, 3_000, 3_000),
            (30_000, 3_000, 4_000),
            (30_000, 1, 1),
            (30_000, 1, 40),
            (30_000, 200, 200),
            (30_000, 200, 250),
            (4_000, 200, 200),
            (4_000, 200, 210),
            (4_000, 1, 3),
        ] {
            let (sent, least) = pace(timeout, tick, round_trip);
            assert!(sent < 25.0, "{timeout} {tick} {round_trip}: {sent}");
            assert!(least > ms(timeout / 3), "{timeout} {tick} {round_trip}: {least:?}");
        }
    }

    #[test]
    fn a_refused_heartbeat_is_sent_again_soon_and_then_less_often() {
        let clock = LeaseClock::start(Rule::OneTick, at(0), at(10), ms(24_000), ms(200));
        let mut now = at(4_000);
        let mut delays = Vec::new();
        while now < clock.deadline() {
            let next = clock.ask_again(now, delays.len() as u32);
            delays.push(next.since(now).as_millis());
            now = next;
        }
        assert_eq!(delays[..6], [100, 200, 400, 800, 1_000, 1_000], "{delays:?}");
        assert!(delays.iter().rev().take(6).all(|delay| *delay == 100), "and often at the end: {delays:?}");
        assert!(delays.len() < 60, "{}", delays.len());
    }
}
