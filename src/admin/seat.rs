//! What one connection of the admin port has asked for and been given, and whether that is too much. Pure.

use std::time::Duration;

use super::traffic::Traffic;
use crate::clock::Time;

/// Requests in one [`WINDOW`].
pub const REQUESTS_MAX: u32 = 1_000;
/// Bytes that have come since the last request was read, without being one. No head is as long.
pub const UNHEARD_MAX: u64 = 64 << 10;
/// Bytes of answers that were given and not taken. One answer is always given, however long.
pub const OWED_MAX: u64 = 1 << 20;

const WINDOW: Duration = Duration::from_secs(1);

/// The least that an answer has beside its body.
const HEAD_BYTES: u64 = 80;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is answered.
    Answer,
    /// Its connection has been cut before; what is read of it still need not be answered.
    AtItsEnd,
    /// It is too much, for this reason: the connection is to be cut.
    Cut(&'static str),
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    quiet_since: Time,
    is_cut: bool,
    /// Bytes that had been received when the last request was read: it and all before it.
    heard: u64,
    /// Bytes that will have been written once all answers are. Never less than was written.
    owed: u64,
    window: Time,
    requests: u32,
}

impl Seat {
    /// A connection that was accepted at `now`.
    pub fn new(now: Time) -> Seat {
        Seat {
            quiet_since: now,
            is_cut: false,
            heard: 0,
            owed: 0,
            window: now,
            requests: 0,
        }
    }

    /// Since when it has sent no request.
    pub fn quiet_since(&self) -> Time {
        self.quiet_since
    }

    /// Whether it has been cut.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// It is cut; whether that is new.
    pub fn cut(&mut self) -> bool {
        !std::mem::replace(&mut self.is_cut, true)
    }

    /// A request was read at `now`. What the kernel does not count is not held against it.
    pub fn request(&mut self, now: Time, traffic: impl FnOnce() -> Option<Traffic>) -> Verdict {
        if self.is_cut {
            return Verdict::AtItsEnd;
        }
        self.quiet_since = now;
        if now.since(self.window) >= WINDOW {
            (self.window, self.requests) = (now, 0);
        }
        self.requests += 1;
        if self.requests > REQUESTS_MAX {
            return Verdict::Cut("it sends more than 1,000 requests a second");
        }
        let Some(Traffic { received, written }) = traffic() else {
            return Verdict::Answer;
        };
        self.heard = received;
        self.owed = self.owed.max(written);
        if self.owed - written > OWED_MAX {
            return Verdict::Cut("it does not take its answers");
        }
        Verdict::Answer
    }

    /// An answer with a body of so many bytes was given.
    pub fn answered(&mut self, body_bytes: usize) {
        self.owed += HEAD_BYTES + body_bytes as u64;
    }

    /// Whether it ends without a request although bytes have come.
    pub fn sent_nonsense(&self, traffic: Option<Traffic>) -> bool {
        !self.is_cut && self.heard == 0 && traffic.is_some_and(|traffic| traffic.received > 0)
    }

    /// Whether it sends what makes no request.
    pub fn is_flooding(&self, traffic: Option<Traffic>) -> bool {
        let unheard = traffic.map_or(0, |traffic| traffic.received.saturating_sub(self.heard));
        !self.is_cut && unheard > UNHEARD_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn traffic(received: u64, written: u64) -> Option<Traffic> {
        Some(Traffic { received, written })
    }

    #[test]
    fn a_thousand_requests_a_second_are_answered_and_no_more() {
        let mut seat = Seat::new(at(0));
        for second in 0..3 {
            for _ in 0..REQUESTS_MAX {
                let verdict = seat.request(at(1_000 * second + 1), || traffic(0, 0));
                assert_eq!(verdict, Verdict::Answer);
            }
        }
        assert!(matches!(
            seat.request(at(2_500), || traffic(0, 0)),
            Verdict::Cut(_)
        ));
        assert!(seat.cut() && !seat.cut());
        assert_eq!(seat.request(at(9_000), || None), Verdict::AtItsEnd);
    }

    #[test]
    fn answers_that_are_taken_may_be_any_number_and_others_may_not() {
        let mut seat = Seat::new(at(0));
        let mut written = 0;
        for index in 0..1_000 {
            let verdict = seat.request(at(10 * index), || traffic(0, written));
            assert_eq!(verdict, Verdict::Answer);
            seat.answered(1_500_000);
            // The head is longer than the least.
            written += 1_500_200;
        }
        // Nothing that was counted too much by then pays for this.
        let verdict = seat.request(at(20_000), || traffic(0, written));
        assert_eq!(verdict, Verdict::Answer);
        seat.answered(1_500_000);
        let verdict = seat.request(at(20_010), || traffic(0, written + 1_000));
        assert!(matches!(verdict, Verdict::Cut(_)));
    }

    #[test]
    fn a_few_pipelined_requests_are_no_flood() {
        let mut seat = Seat::new(at(0));
        for _ in 0..8 {
            assert_eq!(seat.request(at(0), || traffic(400, 0)), Verdict::Answer);
            seat.answered(30_000);
        }
    }

    #[test]
    fn bytes_that_make_no_request_are_counted_from_the_last_one() {
        let mut seat = Seat::new(at(0));
        assert!(!seat.is_flooding(traffic(UNHEARD_MAX, 0)));
        assert!(seat.is_flooding(traffic(UNHEARD_MAX + 1, 0)));
        assert_eq!(seat.request(at(1), || traffic(100_000, 0)), Verdict::Answer);
        assert!(!seat.is_flooding(traffic(100_000 + UNHEARD_MAX, 0)));
        assert!(seat.is_flooding(traffic(100_001 + UNHEARD_MAX, 0)));
        assert!(!seat.is_flooding(None));
        seat.cut();
        assert!(!seat.is_flooding(traffic(1 << 40, 0)), "it is cut already");
    }

    #[test]
    fn bytes_without_a_request_are_nonsense_and_silence_is_not() {
        let mut seat = Seat::new(at(0));
        assert!(!seat.sent_nonsense(traffic(0, 0)) && !seat.sent_nonsense(None));
        assert!(seat.sent_nonsense(traffic(5, 0)));
        assert_eq!(seat.request(at(1), || traffic(40, 0)), Verdict::Answer);
        assert!(!seat.sent_nonsense(traffic(45, 0)));
    }
}
