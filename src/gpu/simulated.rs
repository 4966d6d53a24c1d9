//! The simulated executor: a GPU that needs no GPU. It takes a batch time and returns each input in upper case, so that
//! an answer given to the wrong caller shows. What goes wrong with it is scripted; see [`super::faults`].

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Time};
use crate::config::SimulatedConfig;
use crate::gpu::executor::{Executor, Half, Lost, Outcome};
use crate::gpu::faults::{Kind, Script, Strike};
use crate::ticket::{Input, Output};

/// How often a batch that is held looks whether it still is.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a running batch will end.
#[derive(Clone, Debug, PartialEq)]
enum Ending {
    Outputs,
    Raise,
    TooFew,
    Lost,
    Never,
}

#[derive(Debug)]
struct Running {
    half: Half,
    ends: Time,
    ending: Ending,
    /// The executor does not return before this, whatever it is told.
    blocked_until: Time,
    /// The batch is held: how often the script had been cleared by then.
    held: Option<u64>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Simulated {
    gpu: usize,
    config: SimulatedConfig,
    script: Arc<Script>,
    random: Random,
    staged: [Vec<Input>; 2],
    running: Option<Running>,
    /// When the device can be reset: after its cold start, or after the time that a fault takes it away for.
    resettable_at: Option<Time>,
}

impl Simulated {
    /// The simulated GPU number `gpu`, which also seeds its jitter.
    pub fn new(config: SimulatedConfig, gpu: usize, script: Arc<Script>) -> Simulated {
        Simulated {
            gpu,
            config,
            script,
            random: Random(gpu as u64 + 1),
            staged: [Vec::new(), Vec::new()],
            running: None,
            resettable_at: None,
        }
    }

    fn batch_time(&mut self) -> Duration {
        let swing = (2.0 * self.random.unit() - 1.0) * self.config.jitter;
        self.config.latency.mul_f64((1.0 + swing).max(0.0))
    }

    fn start(&mut self, half: Half, strike: Option<Strike>) -> Running {
        let (now, span) = (clock::now(), self.batch_time());
        let mut run = Running {
            half,
            ends: now + span,
            ending: Ending::Outputs,
            blocked_until: Time::ZERO,
            held: None,
        };
        let Some(Strike { kind, cleared }) = strike else {
            return run;
        };
        match kind {
            Kind::Clear => {}
            Kind::Lost(away) => {
                run.ends = now + span / 2;
                run.ending = Ending::Lost;
                self.resettable_at = Some(run.ends + away);
            }
            Kind::Hang(away) => {
                run.ending = Ending::Never;
                self.resettable_at = Some(now + away);
            }
            Kind::Block(span) => {
                run.ending = Ending::Never;
                run.blocked_until = now + span;
            }
            Kind::Slow(factor) => run.ends = now + span.mul_f64(factor),
            Kind::Raise(_) => run.ending = Ending::Raise,
            Kind::Count => run.ending = Ending::TooFew,
            Kind::Hold => run.held = Some(cleared),
            Kind::Panic(away) => {
                self.resettable_at = Some(now + away);
                panic!("a scripted panic of simulated gpu {}", self.gpu);
            }
        }
        run
    }

    /// Waits until the script lets go of what it holds, or `until`; says whether it still holds it then.
    fn is_held(&self, cleared: u64, until: Time) -> bool {
        while self.script.holds(cleared) {
            let now = clock::now();
            if now >= until {
                return true;
            }
            sleep_until(until.min(now + LOOK_EVERY));
        }
        false
    }
}

impl Executor for Simulated {
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        self.staged[half.index()] = inputs.to_vec();
        Ok(())
    }

    fn launch(&mut self, half: Half) -> Result<(), Lost> {
        assert!(self.running.is_none(), "a GPU runs one batch at a time");
        let strike = self.script.launched(self.gpu, &self.staged[half.index()]);
        self.running = Some(self.start(half, strike));
        Ok(())
    }

    fn wait(&mut self, until: Time) -> Outcome {
        let Some(run) = &self.running else {
            return Outcome::Lost(Lost("nothing was launched".to_owned()));
        };
        sleep_until(run.blocked_until);
        let ends = if run.ending == Ending::Never {
            Time::MAX
        } else {
            run.ends
        };
        sleep_until(ends.min(until));
        if clock::now() < ends || run.held.is_some_and(|cleared| self.is_held(cleared, until)) {
            return Outcome::Pending;
        }
        let (half, ending) = (run.half, run.ending.clone());
        self.running = None;
        let inputs = std::mem::take(&mut self.staged[half.index()]);
        match ending {
            Ending::Outputs => Outcome::Done(inputs.iter().map(|input| Ok(upper(input))).collect()),
            Ending::TooFew => Outcome::Done(
                inputs
                    .iter()
                    .skip(1)
                    .map(|input| Ok(upper(input)))
                    .collect(),
            ),
            Ending::Raise => {
                Outcome::Raised("ValueError: scripted: this input is not acceptable".to_owned())
            }
            Ending::Lost => Outcome::Lost(Lost("the device is lost (scripted)".to_owned())),
            Ending::Never => Outcome::Pending,
        }
    }

    fn check(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    fn reset(&mut self, until: Time) -> Result<(), Lost> {
        self.running = None;
        let now = clock::now();
        match self.resettable_at {
            None => {
                let warm = now + self.config.cold_start;
                sleep_until(warm.min(until));
                if warm > until {
                    return Err(Lost(
                        "the cold start takes longer than a reset may".to_owned(),
                    ));
                }
                self.resettable_at = Some(warm);
                Ok(())
            }
            Some(at) if at <= now => Ok(()),
            Some(_) => Err(Lost(
                "the device does not come back yet (scripted)".to_owned(),
            )),
        }
    }
}

fn upper(input: &Input) -> Output {
    Output {
        text: input.text.to_uppercase(),
        tokens: None,
    }
}

fn sleep_until(until: Time) {
    let span = until.since(clock::now());
    if !span.is_zero() {
        #[expect(
            clippy::disallowed_methods,
            reason = "the time that passes here is the simulated GPU's work"
        )]
        std::thread::sleep(span);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): seeded jitter for a simulation needs no more.
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// The next number, even in 0..1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
