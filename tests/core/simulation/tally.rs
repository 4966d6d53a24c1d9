//! What happened how often.

macro_rules! events {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Something that the core must get right, and so must happen.
        #[derive(Clone, Copy, Debug)]
        pub enum Event {
            $($(#[$about])* $name,)*
        }

        const ALL: [Event; [$(Event::$name),*].len()] = [$(Event::$name),*];
    };
}

events! {
    QueueFull,
    RefusedAsInfeasible,
    RefusedAsTooShort,
    RefusedInYellow,
    RefusedInRed,
    RefusedAtLimit,
    RefusedWithoutGpu,
    Held,
    LaunchedFull,
    LaunchedHold,
    LaunchedPaced,
    LaunchedRetry,
    /// A batch was bound ahead.
    Staged,
    /// A batch was bound ahead, but some were dead and the rest was returned.
    StagedInVain,
    /// A batch that was bound ahead was launched the moment the one before it was back.
    LaunchedAhead,
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
    TooLarge,
    /// A waiting ticket was judged again and shed.
    Rejudged,
    GoneAtRejudge,
    ExpiredAtRejudge,
    /// A waiting ticket was told that the last GPU is down.
    WithoutGpu,
    LostInRun,
    LostWhenStaged,
    LostWhenLaunched,
    LostWhenChecked,
    TimedOut,
    TurnedAway,
    /// The watchdog failed a GPU whose executor blocks.
    Seized,
    /// A thread came back from a blocking executor with results that went nowhere.
    WentNowhere,
    ResetFailed,
    CanaryFailed,
    CameBack,
    Probed,
    /// A search for bad inputs began.
    Searched,
    /// A full batch of others ran between two runs of a search.
    RanInBetween,
    Blamed,
    /// An input was rejected without a search.
    Named,
    /// A ticket was answered in the course of a search.
    Cleared,
    /// A search ended with the device as the suspect.
    Suspected,
    /// A search was cut short by the loss of its GPU.
    SearchLost,
    NoTime,
    NoBudget,
    /// A GPU that was told to leave had something in hand, and left when that was settled.
    Left,
    /// One had nothing in hand, and left at once.
    LeftAtOnce,
    /// A batch that had boarded behind another one went back to wait, since its GPU was leaving.
    LeftWithout,
    /// A GPU that was leaving failed before it had left.
    LostOnItsWayOut,
    /// A GPU took the seat of one that had left.
    Joined,
    /// The server ended with callers waiting.
    Drained,
}

/// Each event happens at least so often in half of the default seeds.
const OFTEN: usize = 50;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Tally([usize; ALL.len()]);

impl Default for Tally {
    fn default() -> Tally {
        Tally([0; ALL.len()])
    }
}

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
        let counted = || ALL.into_iter().zip(self.0);
        let rare: Vec<_> = counted().filter(|(_, count)| *count < OFTEN).collect();
        assert!(
            rare.is_empty(),
            "some events are too rare to trust the run: {rare:?} of {:?}",
            counted().collect::<Vec<_>>()
        );
    }
}
