//! The world's devices, and the batch function that runs on them.

use std::time::Duration;

use funicular::clock::Time;
use funicular::gpu::executor::{Lost, Outcome};
use funicular::ticket::{Input, Output};

/// Outputs are refused from this size on, in bytes.
pub const OUTPUT_MAX: usize = 64;

/// The input of canaries.
pub const CANARY: &str = "canary";

const OUT_OF_SORTS: &str = "out of sorts";
const IN_A_MOOD: &str = "in a mood";

/// How the batch function takes bad inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// It raises.
    Raises,
    /// It says which inputs it rejects.
    Names,
    /// It swallows them and returns too few outputs.
    Swallows,
}

/// What an input does to the batch function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Good,
    Bad,
    /// Its output is too long.
    Long,
}

impl Mark {
    /// The input of ticket `id` with this mark.
    pub fn input(self, id: usize) -> Input {
        Input::new(match self {
            Mark::Good => id.to_string(),
            Mark::Bad => format!("{id} bad"),
            Mark::Long => format!("{id} long"),
        })
    }

    fn of(input: &Input) -> Mark {
        match input.text.split_once(' ') {
            Some((_, "bad")) => Mark::Bad,
            Some((_, "long")) => Mark::Long,
            _ => Mark::Good,
        }
    }
}

impl Function {
    /// What is said of a bad input that runs alone.
    pub fn says_of(self, id: usize) -> String {
        match self {
            Function::Raises | Function::Names => format!("no good: {id} bad"),
            Function::Swallows => {
                "the batch function returned 0 outputs for a batch of 1".to_owned()
            }
        }
    }

    fn run(self, inputs: &[Input]) -> Outcome {
        let bad = |input: &&Input| Mark::of(input) == Mark::Bad;
        let complaint = |input: &Input| format!("no good: {}", input.text);
        let one = |input: &Input| match self {
            Function::Names if bad(&input) => Err(complaint(input)),
            _ => Ok(output(input)),
        };
        match (self, inputs.iter().find(bad)) {
            (Function::Raises, Some(first)) => Outcome::Raised(complaint(first)),
            (Function::Swallows, Some(_)) => {
                Outcome::Done(inputs.iter().filter(|input| !bad(input)).map(one).collect())
            }
            _ => Outcome::Done(inputs.iter().map(one).collect()),
        }
    }
}

/// What ticket `id` is answered.
pub fn answer_to(id: &str) -> String {
    format!("answer to {id}")
}

fn output(input: &Input) -> Output {
    let (id, _) = input.text.split_once(' ').unwrap_or((&input.text, ""));
    let mut text = answer_to(id);
    if Mark::of(input) == Mark::Long {
        text.extend(std::iter::repeat_n('!', OUTPUT_MAX));
    }
    Output { text, tokens: None }
}

/// One run on a device, its end known beforehand.
#[derive(Debug)]
pub struct Run {
    pub launched: Time,
    /// When it is expected back.
    pub expected: Time,
    /// When the executor returns, with `outcome`.
    pub returns: Time,
    pub outcome: Outcome,
    pub inputs: usize,
}

/// How the next run goes wrong in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It takes so many times as long.
    Slow(u32),
    /// It never ends, and the executor says so when its time is up.
    Hang,
    /// The executor returns only this long after its time is up, with what there is by then.
    Block(Duration),
}

/// What is wrong with a device.
#[derive(Debug, Default)]
pub struct Device {
    /// The next call finds it gone.
    pub lost: bool,
    /// It can't be reset.
    pub broken: bool,
    /// It raises on everything until it is reset.
    pub sticky: bool,
    /// It raises on its next run, if that is of more than one input.
    pub moody: bool,
    /// It turns the next batch away.
    pub occupied: bool,
    pub trap: Option<Trap>,
}

impl Device {
    /// Whether a reset works. It cures everything but a broken device.
    pub fn reset(&mut self) -> bool {
        if self.broken {
            return false;
        }
        *self = Device::default();
        true
    }

    /// A run of `inputs` that is launched at `now`, would take `span`, and may take `limit`.
    pub fn run(
        &mut self,
        function: Function,
        inputs: &[Input],
        (now, span, limit): (Time, Duration, Duration),
    ) -> Run {
        let (span, blocked) = match self.trap.take() {
            None => (span, None),
            Some(Trap::Slow(factor)) => (span * factor, None),
            Some(Trap::Hang) => (Duration::MAX, None),
            Some(Trap::Block(after)) => (span, Some(limit + after)),
        };
        let outcome = if span >= limit {
            Outcome::Pending
        } else if self.sticky {
            Outcome::Raised(OUT_OF_SORTS.to_owned())
        } else if inputs.len() > 1 && std::mem::take(&mut self.moody) {
            Outcome::Raised(IN_A_MOOD.to_owned())
        } else {
            function.run(inputs)
        };
        Run {
            launched: now,
            expected: now,
            returns: now + blocked.unwrap_or(span.min(limit)),
            outcome,
            inputs: inputs.len(),
        }
    }
}

/// Whether what was raised is about the inputs, and not the device's own doing.
pub fn is_about_inputs(message: &str) -> bool {
    ![OUT_OF_SORTS, IN_A_MOOD].contains(&message)
}

/// The outcome of a run whose device is lost.
pub fn lost() -> Outcome {
    Outcome::Lost(Lost("fell off the bus".to_owned()))
}
