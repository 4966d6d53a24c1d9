//! Which workers there should be, and the next step on the way there from those that there are.
//!
//! [`next`] is pure: from the workers that are wanted and the GPUs that are seated it says what to do now. Whoever is missing
//! comes at once; whoever is not wanted any more leaves, one at a time, so that a whole change of workers never costs more than
//! one of them at any moment. A GPU in service stays while those that are to take over still start, and the last one in
//! service stays until another one serves, both at most for [`HANDOVER_MAX`]: better late than dark. Nobody waits for anybody
//! if no worker is wanted at all.
//!
//! The thread `workers` of [`crate::server`] asks again and again until there is nothing left to do, and then sleeps until
//! the configuration is read again ([`Roster::want`]).

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::{self, Time};
use crate::gpu::health::State;
use crate::gpu::remote::Target;

/// Longest time that a GPU which is to leave stays for the sake of those that are to take over.
pub const HANDOVER_MAX: Duration = Duration::from_secs(60);

/// While something is left to do it is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A GPU that has a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    /// Its number.
    pub gpu: usize,
    /// The URL of its worker.
    pub worker: String,
    /// How it stands.
    pub state: State,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Give this worker a seat.
    Add(Target),
    /// Tell the GPU of this number to leave.
    Remove(usize),
    /// Look again soon: somebody is on the way in or out.
    Wait,
    /// Everybody is here who should be, and nobody else.
    Rest,
}

/// The next move from `seated` to `wanted`, which was wanted `waited` ago. `has_room`: whether a seat is free.
pub fn next(wanted: &[Target], seated: &[Seated], has_room: bool, waited: Duration) -> Move {
    let wanted: Vec<(String, &Target)> = wanted.iter().map(|to| (to.to_string(), to)).collect();
    let is_wanted = |gpu: &Seated| wanted.iter().any(|(url, _)| *url == gpu.worker);
    let leaves = |gpu: &Seated| matches!(gpu.state, State::Draining | State::Gone);
    let present: Vec<&Seated> = seated.iter().filter(|gpu| !leaves(gpu)).collect();
    let is_missing = |url: &str| present.iter().all(|gpu| gpu.worker != url);
    let missing = wanted.iter().find(|(url, _)| is_missing(url));
    if let Some((_, target)) = missing.filter(|_| has_room) {
        return Move::Add((*target).clone());
    }
    if seated.iter().any(|gpu| gpu.state == State::Draining) {
        return Move::Wait;
    }
    let (stay, go): (Vec<&Seated>, Vec<&Seated>) =
        present.iter().copied().partition(|gpu| is_wanted(gpu));
    let idle_first = |gpu: &&&Seated| gpu.state.in_service();
    match go.iter().min_by_key(idle_first) {
        Some(gpu) if may_go(gpu, &stay, waited) => Move::Remove(gpu.gpu),
        None if missing.is_none() => Move::Rest,
        _ => Move::Wait,
    }
}

fn may_go(gpu: &Seated, stay: &[&Seated], waited: Duration) -> bool {
    let starting = |gpu: &&Seated| matches!(gpu.state, State::Warming | State::Probing);
    let serves = |gpu: &&Seated| gpu.state.in_service();
    let ready = !stay.iter().any(starting) && stay.iter().any(serves);
    !gpu.state.in_service() || stay.is_empty() || ready || waited >= HANDOVER_MAX
}

/// The workers that are wanted, as the configuration has them.
#[derive(Debug, Default)]
pub struct Roster {
    wanted: Mutex<Wanted>,
    news: Condvar,
}

#[derive(Clone, Debug, Default)]
struct Wanted {
    workers: Vec<Target>,
    since: Time,
    /// Whether nothing was left to do, and nobody has said anything since.
    is_settled: bool,
}

impl Roster {
    /// These are wanted from now on.
    pub fn want(&self, workers: Vec<Target>) {
        *self.wanted.lock() = Wanted {
            workers,
            since: clock::now(),
            is_settled: false,
        };
        self.news.notify_all();
    }

    /// Those that are wanted.
    pub fn wanted(&self) -> Vec<Target> {
        self.wanted.lock().workers.clone()
    }

    /// The next move, see [`next`].
    pub fn next(&self, seated: &[Seated], has_room: bool) -> Move {
        let mut wanted = self.wanted.lock();
        let waited = clock::now().since(wanted.since);
        let next = next(&wanted.workers, seated, has_room, waited);
        wanted.is_settled = next == Move::Rest;
        next
    }

    /// Sleeps until the next look is due: soon, or if all is settled when others are wanted.
    pub fn sleep(&self) {
        let mut wanted = self.wanted.lock();
        if wanted.is_settled {
            self.news.wait(&mut wanted);
        } else {
            self.news.wait_for(&mut wanted, LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: char) -> Target {
        format!("http://{name}:1").parse().expect("a URL")
    }

    fn targets(names: &str) -> Vec<Target> {
        names.chars().map(target).collect()
    }

    /// `a+` serves, `b?` starts, `c-` is down, `d~` drains, `e.` is gone.
    fn seated(text: &str) -> Vec<Seated> {
        let each = text.split_whitespace().enumerate().map(|(gpu, word)| {
            let state = match &word[1..] {
                "+" => State::Busy,
                "?" => State::Warming,
                "-" => State::Down,
                "~" => State::Draining,
                "." => State::Gone,
                other => panic!("no such state: {other}"),
            };
            Seated {
                gpu,
                worker: target(word.chars().next().expect("a name")).to_string(),
                state,
            }
        });
        each.collect()
    }

    fn step(wanted: &str, now: &str) -> Move {
        next(&targets(wanted), &seated(now), true, Duration::ZERO)
    }

    #[test]
    fn who_is_missing_comes_before_anybody_leaves() {
        assert_eq!(step("ab", ""), Move::Add(target('a')));
        assert_eq!(step("b", "a+"), Move::Add(target('b')));
        assert_eq!(step("ab", "a+ b?"), Move::Rest);
        assert_eq!(step("a", "a."), Move::Add(target('a')), "it came back");
        assert_eq!(step("a", "a~"), Move::Add(target('a')), "likewise");
        assert_eq!(step("", "a."), Move::Rest);
    }

    #[test]
    fn they_leave_one_at_a_time_and_those_out_of_service_first() {
        assert_eq!(step("c", "a+ b- c+"), Move::Remove(1));
        assert_eq!(step("c", "a+ b+ c+"), Move::Remove(0));
        assert_eq!(step("c", "a~ b+ c+"), Move::Wait);
        assert_eq!(step("c", "a~ c+"), Move::Wait, "it has not gone yet");
        assert_eq!(step("c", "a. b+ c+"), Move::Remove(1));
        assert_eq!(step("c", "a. b. c+"), Move::Rest);
    }

    #[test]
    fn who_serves_stays_for_those_who_start_but_not_for_ever() {
        assert_eq!(step("bc", "a+ b? c+"), Move::Wait, "capacity is on its way");
        assert_eq!(step("bc", "a+ b- c+"), Move::Remove(0), "it is not");
        assert_eq!(step("b", "a+ b-"), Move::Wait, "it would be the last");
        assert_eq!(step("b", "a+ b+"), Move::Remove(0));
        for now in ["a+ b?", "a+ b-"] {
            let move_on = next(&targets("b"), &seated(now), true, HANDOVER_MAX);
            assert_eq!(move_on, Move::Remove(0));
        }
    }

    #[test]
    fn where_nobody_is_wanted_nobody_waits() {
        assert_eq!(step("", "a+ b+"), Move::Remove(0));
        assert_eq!(step("", "a+"), Move::Remove(0));
    }

    #[test]
    fn without_room_somebody_leaves_first() {
        let full =
            |wanted: &str, now: &str| next(&targets(wanted), &seated(now), false, Duration::ZERO);
        assert_eq!(full("bc", "a+ b+"), Move::Remove(0));
        assert_eq!(full("bc", "a~ b+"), Move::Wait);
        assert_eq!(full("bc", "a. b+"), Move::Wait, "its thread has not ended");
        assert_eq!(
            full("cd", "a+ b+"),
            Move::Remove(0),
            "nobody here could take over"
        );
    }

    #[test]
    fn any_change_is_over_after_as_many_moves_as_it_takes() {
        let (from, to) = ("a+ b+ c- d+", "dxyz");
        let mut now = seated(from);
        for moves in 0.. {
            match next(&targets(to), &now, true, Duration::ZERO) {
                Move::Add(target) => now.push(Seated {
                    gpu: now.len(),
                    worker: target.to_string(),
                    state: State::Ready,
                }),
                Move::Remove(gpu) => now[gpu].state = State::Gone,
                Move::Rest => {
                    assert_eq!(moves, 6);
                    break;
                }
                Move::Wait => panic!("everybody is fast: {now:?}"),
            }
        }
    }
}
