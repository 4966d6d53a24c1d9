//! What happened how often.

/// Something that the core must get right, and so must happen.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Refused,
    Held,
    LaunchedFull,
    LaunchedHold,
    LaunchedPaced,
    LaunchedRetry,
    /// A batch was bound ahead.
    Staged,
    /// A batch was bound ahead, but some were dead and the rest was returned.
    StagedInVain,
    /// A batch that was bound ahead was given back.
    GivenBack,
    /// A ticket was sent back to wait because its batch was lost.
    Retried,
    /// A ticket was lost twice.
    LostTwice,
    ExpiredAtClaim,
    GoneAtClaim,
    ExpiredAtLaunch,
    /// An answer came after its caller had left or its deadline passed.
    Late,
}

const KINDS: usize = Event::Late as usize + 1;

/// Each event happens at least so often in half of the default seeds.
const OFTEN: usize = 50;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Tally([usize; KINDS]);

impl Tally {
    pub fn note(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    pub fn add(mut self, other: Tally) -> Tally {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(sum, count)| *sum += count);
        self
    }

    /// # Panics
    /// If something hardly ever happened.
    pub fn check(&self) {
        let rare = self.0.iter().filter(|&&count| count < OFTEN).count();
        assert_eq!(
            rare, 0,
            "some events are too rare to trust the run: {:?}",
            self.0
        );
    }
}
