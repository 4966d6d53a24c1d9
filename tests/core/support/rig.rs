//! The core as the server wires it — hand-over, doorbell, waiting room, scheduler — without the threads.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use funicular::batch::Batch;
use funicular::batch::policy::Policy;
use funicular::batch::pool::Activity;
use funicular::batch::schedule::{Advice, Scheduler};
use funicular::clock::Time;
use funicular::queue::{Backlog, Doorbell, Handover, Intake, handover};
use funicular::ticket::{Failure, Ticket};
use funicular::tier::Tier;
use funicular::wake::{Mailbox, Mailboxes};
use rustix::event::{EventfdFlags, eventfd};

/// What a holder of the token is told when there is nothing to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Tickets that are worth another look.
    pub need: usize,
    /// When to look again whatever happens.
    pub again: Time,
}

/// When the holder of the token looks at the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// On every event, as the rule is written.
    Always,
    /// When the doorbell rings or `again` has come, as the collector does.
    WhenWoken,
}

/// See the module's text.
pub struct Rig {
    pub scheduler: Scheduler,
    pub intake: Intake,
    pub mailboxes: Mailboxes,
    handover: Handover,
    doorbell: Arc<Doorbell>,
    ear: Receiver<()>,
    looks: Looks,
    again: Time,
    closed: bool,
}

impl Rig {
    /// A core for `gpus` GPUs, all down, with room for `bound` tickets in each tier.
    pub fn new(policy: Policy, gpus: usize, bound: usize, looks: Looks) -> Rig {
        let (doorbell, ear) = Doorbell::new();
        let doorbell = Arc::new(doorbell);
        let (intake, handover, backlog) = handover(bound, Arc::clone(&doorbell));
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        Rig {
            scheduler: Scheduler::new(policy, gpus, backlog),
            intake,
            mailboxes: Mailboxes::new([Mailbox::new(4096, bell)]),
            handover,
            doorbell,
            ear,
            looks,
            again: Time::ZERO,
            closed: false,
        }
    }

    /// Promises each tier a part of every batch.
    pub fn with_min_share(self, min_share: [f64; Tier::COUNT]) -> Rig {
        Rig {
            scheduler: self.scheduler.with_min_share(min_share),
            ..self
        }
    }

    /// The live counts.
    pub fn backlog(&self) -> &Backlog {
        self.intake.backlog()
    }

    /// Changes what `gpu` does, and wakes the holder if that is news to it.
    pub fn set_activity(&mut self, gpu: usize, activity: Activity) {
        if self.scheduler.set_activity(gpu, activity) {
            self.doorbell.ring();
        }
    }

    /// Tickets came back to wait, or a GPU went. Returns what everybody who waits was told if nobody is left to wait for.
    pub fn returned(&mut self) -> Option<Failure> {
        let hopeless = self.scheduler.hopeless(self.closed);
        if let Some(failure) = &hopeless {
            self.fail_waiting(failure);
        }
        self.doorbell.ring();
        hopeless
    }

    /// Answers everybody who waits with `failure`.
    pub fn fail_waiting(&mut self, failure: &Failure) {
        self.drain(|_| {});
        let mut wakes = self.mailboxes.gather();
        self.scheduler.fail_waiting(failure, &mut wakes);
    }

    /// Nobody will look at those who wait any more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Seats what was handed over; `seen` is shown each ticket.
    pub fn drain(&mut self, mut seen: impl FnMut(&Ticket)) {
        let scheduler = &mut self.scheduler;
        self.handover.drain(|ticket| {
            seen(&ticket);
            scheduler.seat(ticket);
        });
    }

    /// Whether nothing lies in the hand-over.
    pub fn is_drained(&self) -> bool {
        self.handover.is_empty()
    }

    /// Whether the holder of the token looks at the room at `now`.
    pub fn is_due(&self, now: Time) -> bool {
        let rung = self.ear.try_recv().is_ok();
        rung || now >= self.again || self.looks == Looks::Always
    }

    /// When the holder wakes up by itself.
    pub fn again(&self) -> Time {
        self.again
    }

    /// The holder has nothing to launch and goes to sleep.
    pub fn sleep(&mut self, hold: Hold) {
        self.doorbell.arm(hold.need);
        self.again = hold.again;
    }

    /// The token changes hands: the next holder looks at once.
    pub fn pass_token(&mut self) {
        self.doorbell.disarm();
        self.again = Time::ZERO;
    }

    /// No GPU is idle, so nobody holds the token.
    pub fn leave_token(&mut self) {
        self.doorbell.disarm();
        self.again = Time::MAX;
    }

    /// One decision for the idle `gpu`: the batch it claims, possibly of nobody.
    pub fn look(&mut self, gpu: usize, now: Time) -> Result<Batch, Hold> {
        match self.scheduler.decide(gpu, now) {
            Advice::Hold { need, again } => Err(Hold { need, again }),
            Advice::Leave => panic!("gpu {gpu} is idle, and yet told to leave"),
            Advice::Launch(lane, reason) => {
                let mut wakes = self.mailboxes.gather();
                Ok(self.scheduler.claim(gpu, lane, reason, now, &mut wakes))
            }
        }
    }
}
