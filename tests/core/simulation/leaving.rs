//! GPUs that are told to leave, and others that take their seats.

use funicular::batch::schedule::Advice;
use funicular::clock::Time;
use funicular::gpu::health::State;

use super::gpus::{Gpu, Phase, Thread};
use super::tally::Event;
use super::world::World;

impl World {
    /// Tells a GPU to leave: it counts no more from now on, and its thread ends as soon as it has nothing in hand.
    pub(super) fn remove_any(&mut self) {
        let Some(gpu) = self.any_gpu(|gpu| !gpu.is_leaving) else {
            return;
        };
        let now = self.now;
        let it = &mut self.gpus[gpu];
        let (phase, seized) = (it.phase(), it.seized);
        it.is_leaving = true;
        it.cell.leave("as scripted", now);
        self.rig.scheduler.close(gpu);
        self.returned();
        let advice = self.rig.scheduler.decide(gpu, now);
        assert_eq!(advice, Advice::Leave, "a closed seat gets nothing");
        match phase {
            // A thread that blocks in its executor finds out when it is back.
            Phase::Down if seized => assert_eq!(self.gpus[gpu].cell.state(), State::Gone),
            Phase::Down => {
                assert_eq!(self.gpus[gpu].cell.state(), State::Gone);
                self.tally.note(Event::LeftAtOnce);
                self.has_left(gpu);
            }
            Phase::Idle => {
                self.tally.note(Event::LeftAtOnce);
                self.has_left(gpu);
            }
            Phase::Busy => {
                assert_eq!(self.gpus[gpu].cell.state(), State::Draining);
                self.tally.note(Event::Left);
            }
        }
    }

    /// The thread of `gpu` has nothing in hand any more, and ends.
    pub(super) fn has_left(&mut self, gpu: usize) {
        let it = &mut self.gpus[gpu];
        let (held, _) = it.cell.fail("as scripted", self.now, true);
        assert!(held.is_empty(), "it leaves with nothing in hand");
        it.seized = false;
        it.cell.expect_by(Time::MAX);
        it.thread = Thread::Ended;
    }

    /// Another GPU takes the seat of one that has left.
    pub(super) fn join_any(&mut self) {
        let has_left = |gpu: &Gpu| matches!(gpu.thread, Thread::Ended);
        let Some(gpu) = self.any_gpu(has_left) else {
            return;
        };
        self.rig.scheduler.open(gpu);
        self.shadow.retried_last[gpu] = false;
        self.gpus[gpu] = Gpu::new(self.now);
        self.tally.note(Event::Joined);
    }
}
