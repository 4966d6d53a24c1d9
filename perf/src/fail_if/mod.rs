//! `--fail-if`: conditions under which a run has failed.
//!
//! `METRIC[{tier=NAME,status=CODE,view=uncorrected}] > VALUE[UNIT]`, with `>`, `>=`, `<` or `<=`. [`HELP`] lists the metrics. A
//! condition about something of which there is nothing (a tier without a single good answer) fails the run: no data is no
//! proof that all is well.

mod parse;

use std::fmt;

use crate::latencies::Latencies;
use crate::record::{Outcome, Recorder};
use crate::report::number;
use crate::result::{FailIfResult, RunResult};

/// What `funicular-perf conditions` prints.
pub const HELP: &str = "\
A condition reads METRIC[{FILTER}] OP VALUE[UNIT], for example

    p95{tier=enterprise}>300ms      error_rate>1%      achieved<9900      late>5ms

METRIC
  p50, p95, p99.9, ...   latency percentile of good (2xx, right) answers   s, ms, us
  mean, min, max         the same                                          s, ms, us
  count                  good answers, or all of one {status=}
  errors                 statuses other than 2xx, time-outs, broken connections
  error_rate             errors / requests ended                           %
  offered, achieved      requests per second asked for, good answers per second
  achieved_ratio         achieved / offered                                %
  late                   99th percentile of the generator's own lateness   s, ms, us
  wrong                  wrong and double answers (these fail a run anyway)
  server_cpu             the server's CPU seconds per 1,000 requests       s, ms, us
  server_rss             the server's largest resident memory in bytes     KiB, MiB, GiB
  utilisation            slot utilisation                                  %

FILTER (comma-separated)
  tier=NAME              one tier only
  status=CODE            latencies, or the count, of this status or outcome: 429, timeout, closed, ...
  view=uncorrected       latencies from the actual write instead of the scheduled time

OP is >, >=, < or <=. The condition says what must NOT be: if it holds, the exit code is 3. So does a condition about
something of which there is nothing, such as a percentile without any answer. A share without % goes from 0 to 1:
error_rate>1% is error_rate>0.01.
";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    Percentile(f64),
    Mean,
    Min,
    Max,
    Count,
    Errors,
    ErrorRate,
    Offered,
    Achieved,
    AchievedRatio,
    Late,
    Wrong,
    ServerCpu,
    ServerRss,
    Utilisation,
}

/// The quantity decides which units make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Time,
    Share,
    Bytes,
    Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Comparison {
    fn sign(self) -> &'static str {
        match self {
            Comparison::Above => ">",
            Comparison::AtLeast => ">=",
            Comparison::Below => "<",
            Comparison::AtMost => "<=",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Filter {
    tier: Option<String>,
    status: Option<String>,
    uncorrected: bool,
}

/// A condition, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    metric: Metric,
    filter: Filter,
    comparison: Comparison,
    /// In nanoseconds, shares from 0 to 1, bytes, or plain.
    bound: f64,
    /// How many of those one unit of the text is.
    unit: f64,
    unit_name: String,
}

/// The text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// No comparison in it.
    #[error(
        "`{0}` is no condition: write METRIC[{{FILTER}}] > VALUE, for example p95{{tier=enterprise}}>300ms"
    )]
    Shape(String),
    /// Not a metric.
    #[error("`{0}` is no metric; `funicular-perf conditions` lists them")]
    Metric(String),
    /// Not a filter, or one that the metric does not take.
    #[error("`{0}` is no filter that this metric takes; `funicular-perf conditions` lists them")]
    Filter(String),
    /// Not a value with a unit that fits.
    #[error("`{0}` is no value for this metric; `funicular-perf conditions` lists the units")]
    Value(String),
    /// A time without its unit.
    #[error("`{0}` is no value for this metric: it needs a unit, as in {0}ms")]
    Unit(String),
    /// A share that is meant in per cent, as far as one can tell.
    #[error("`{0}` is no bound for a share, which goes from 0 to 1: did you mean {0}%?")]
    Share(String),
    /// The run has no such tier.
    #[error("the run has no tier `{0}`: add it to --tiers")]
    Tier(String),
}

impl Condition {
    /// Refuses a condition about a tier that the run does not send.
    ///
    /// # Errors
    /// If the tier is not among `tiers`.
    pub fn check(&self, tiers: &[String]) -> Result<(), ConditionError> {
        match &self.filter.tier {
            Some(tier) if !tiers.contains(tier) => Err(ConditionError::Tier(tier.clone())),
            _ => Ok(()),
        }
    }

    /// What came of it.
    pub fn judge(&self, result: &RunResult, recorder: &Recorder) -> FailIfResult {
        let value = self.measure(result, recorder);
        let failed = value.is_none_or(|value| match self.comparison {
            Comparison::Above => value > self.bound,
            Comparison::AtLeast => value >= self.bound,
            Comparison::Below => value < self.bound,
            Comparison::AtMost => value <= self.bound,
        });
        let value = value.map(|value| value / self.unit);
        let found = self.found(value);
        FailIfResult {
            condition: self.text.clone(),
            value,
            sentence: self.sentence(value.map(|_| found.as_str())),
            found,
            failed,
        }
    }

    /// The value with its unit, in few digits unless those would make it look like the bound that it is not.
    fn found(&self, value: Option<f64>) -> String {
        let Some(value) = value else {
            return "nothing to measure".to_owned();
        };
        let bound = self.bound / self.unit;
        let (short, precise) = (number::short(value), format!("{value:.3}"));
        let same = number::short(bound) == short && precise.parse() != Ok(bound);
        self.with_unit(if same { &precise } else { &short })
    }

    fn with_unit(&self, digits: &str) -> String {
        if self.unit_name.is_empty() {
            digits.to_owned()
        } else {
            format!("{digits} {}", self.unit_name)
        }
    }

    /// What was found and what must not be, as a sentence.
    fn sentence(&self, found: Option<&str>) -> String {
        let subject = self.text.split(['<', '>']).next().unwrap_or_default();
        let is = found.map_or_else(
            || "has nothing to measure".to_owned(),
            |found| format!("is {found}"),
        );
        // As it was written: in fewer digits it might look met.
        let bound = self.text.rsplit(['<', '>', '=']).next();
        let bound = bound.unwrap_or_default().trim();
        let digits = bound.strip_suffix(&self.unit_name).unwrap_or(bound).trim();
        format!(
            "{} {is}, must not be {} {}",
            subject.trim(),
            self.comparison.sign(),
            self.with_unit(digits)
        )
    }

    fn measure(&self, result: &RunResult, recorder: &Recorder) -> Option<f64> {
        let tier = self.filter.tier.as_ref();
        let tier = match tier {
            Some(name) => Some(result.tiers.iter().position(|tier| tier.tier == *name)?),
            None => None,
        };
        if self.metric.is_latency() {
            return self.measure_latency(tier, recorder);
        }
        let totals = &result.totals;
        let server = result.server.as_ref();
        match self.metric {
            Metric::Count => Some(self.count(tier, recorder, |outcome| self.chooses(outcome))),
            Metric::Errors => Some(self.count(tier, recorder, Outcome::is_error)),
            Metric::ErrorRate => {
                let ended = self.count(tier, recorder, |outcome| outcome != Outcome::HangUp);
                (ended > 0.0).then(|| self.count(tier, recorder, Outcome::is_error) / ended)
            }
            Metric::Offered => Some(totals.offered_rate),
            Metric::Achieved => Some(tier.map_or(totals.achieved_rate, |tier| {
                result.tiers[tier].achieved_rate
            })),
            Metric::AchievedRatio => {
                (totals.offered_rate > 0.0).then(|| totals.achieved_rate / totals.offered_rate)
            }
            Metric::Late => Some(recorder.lateness.percentile_ns(99.0) as f64),
            Metric::Wrong => Some((result.mismatches.wrong + result.mismatches.double) as f64),
            Metric::ServerCpu => server.map(|server| server.cpu_seconds_per_1000_requests * 1e9),
            Metric::ServerRss => server.map(|server| server.rss_bytes_max as f64),
            Metric::Utilisation => result.gpu.as_ref().map(|gpu| gpu.slot_utilisation),
            Metric::Percentile(_) | Metric::Mean | Metric::Min | Metric::Max => None,
        }
    }

    fn measure_latency(&self, tier: Option<usize>, recorder: &Recorder) -> Option<f64> {
        let mut latencies = Latencies::default();
        for (index, record) in recorder.tiers.iter().enumerate() {
            if tier.is_some_and(|tier| tier != index) {
                continue;
            }
            if self.filter.status.is_none() {
                latencies.merge(if self.filter.uncorrected {
                    &record.uncorrected
                } else {
                    &record.corrected
                });
                continue;
            }
            for (outcome, of_outcome) in &record.outcomes {
                if self.chooses(*outcome) {
                    latencies.merge(of_outcome);
                }
            }
        }
        if latencies.is_empty() {
            return None;
        }
        match self.metric {
            Metric::Percentile(percentile) => Some(latencies.percentile_ns(percentile) as f64),
            Metric::Mean => Some(latencies.mean_ns()),
            Metric::Min => Some(latencies.min_ns() as f64),
            _ => Some(latencies.max_ns() as f64),
        }
    }

    /// Whether the status filter takes this outcome; without one, good answers count.
    fn chooses(&self, outcome: Outcome) -> bool {
        self.filter
            .status
            .as_ref()
            .map_or(outcome.is_good(), |status| outcome.to_string() == *status)
    }

    fn count(
        &self,
        tier: Option<usize>,
        recorder: &Recorder,
        chosen: impl Fn(Outcome) -> bool + Copy,
    ) -> f64 {
        let count = match tier {
            Some(tier) => recorder.tiers[tier].count(chosen),
            None => recorder.count(chosen),
        };
        count as f64
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Sample, Window};
    use crate::result::{TierResult, Totals};

    const MS: u64 = 1_000_000;

    /// Enterprise: 100 answers of 1 to 100 ms; free: 60 of 10 ms, 40 sheds of 1 ms.
    fn measured() -> (RunResult, Recorder) {
        let mut recorder = Recorder::new(
            2,
            Window {
                from_ns: 0,
                to_ns: 1000 * MS,
            },
            false,
        );
        for number in 0..200u64 {
            let tier = (number % 2) as usize;
            let (outcome, took) = match (tier, number / 2) {
                (0, index) => (Outcome::Status(200), (index + 1) * MS),
                (_, 0..60) => (Outcome::Status(200), 10 * MS),
                _ => (Outcome::Status(429), MS),
            };
            let sample = Sample {
                number,
                tier,
                outcome,
                due_ns: 0,
                written_ns: Some(took / 2),
                done_ns: took,
            };
            recorder.ended(sample);
        }
        let tier = |name: &str| TierResult {
            tier: name.into(),
            ..TierResult::default()
        };
        let result = RunResult {
            tiers: vec![tier("enterprise"), tier("free")],
            totals: Totals {
                offered_rate: 200.0,
                achieved_rate: 160.0,
                ..Totals::default()
            },
            ..RunResult::default()
        };
        (result, recorder)
    }

    fn judge(text: &str) -> FailIfResult {
        let (result, recorder) = measured();
        text.parse::<Condition>()
            .expect("a condition")
            .judge(&result, &recorder)
    }

    #[test]
    fn conditions_hold_or_not() {
        for (text, failed, value) in [
            ("p95{tier=enterprise}>94ms", true, Some(95.0)),
            ("p95{tier=enterprise}>96ms", false, Some(95.0)),
            ("p50 { tier = enterprise } >= 0.05s", true, Some(0.05)),
            (
                "p50{tier=enterprise,view=uncorrected}<=25.1ms",
                true,
                Some(25.0),
            ),
            ("max>100ms", false, Some(100.0)),
            ("min<1ms", false, Some(1.0)),
            ("mean{tier=free}>10ms", false, Some(10.0)),
            ("p99{status=429}>0.9ms", true, Some(1.0)),
            ("count{status=429}>39", true, Some(40.0)),
            ("count<160", false, Some(160.0)),
            ("errors{tier=enterprise}>0", false, Some(0.0)),
            ("error_rate>19%", true, Some(20.0)),
            ("error_rate{tier=free}>0.41", false, Some(0.4)),
            ("achieved<160", false, Some(160.0)),
            ("achieved_ratio<81%", true, Some(80.0)),
            ("wrong>0", false, Some(0.0)),
            ("p50{status=timeout}>1s", true, None),
            ("server_cpu>1ms", true, None),
        ] {
            let found = judge(text);
            assert_eq!(found.failed, failed, "{text}: {found:?}");
            match (found.value, value) {
                (Some(found), Some(value)) => {
                    assert!((found - value).abs() <= value * 0.002, "{text}: {found}")
                }
                (found, value) => assert_eq!(found, value, "{text}"),
            }
        }
    }

    #[test]
    fn what_came_out_is_a_sentence() {
        for (text, sentence) in [
            (
                "p95{tier=enterprise}>94ms",
                "p95{tier=enterprise} is 95 ms, must not be > 94 ms",
            ),
            (
                "p50{tier=enterprise} <= 0.0500 s",
                "p50{tier=enterprise} is 0.05 s, must not be <= 0.0500 s",
            ),
            ("error_rate>19%", "error_rate is 20 %, must not be > 19 %"),
            ("achieved<160.3", "achieved is 160.000, must not be < 160.3"),
            (
                "p50{status=timeout}>1s",
                "p50{status=timeout} has nothing to measure, must not be > 1 s",
            ),
        ] {
            assert_eq!(judge(text).sentence, sentence);
        }
    }

    #[test]
    fn what_is_no_condition_is_refused_with_a_reason() {
        type Reason = fn(String) -> ConditionError;
        for (text, reason, part) in [
            ("p95", ConditionError::Shape as Reason, "p95"),
            ("p95{tier=a>3ms", ConditionError::Shape, "p95{tier=a>3ms"),
            ("p101>3ms", ConditionError::Metric, "p101"),
            ("speed>3ms", ConditionError::Metric, "speed"),
            ("p95{tier}>3ms", ConditionError::Filter, "tier"),
            ("p95{colour=red}>3ms", ConditionError::Filter, "colour=red"),
            ("late{tier=a}>3ms", ConditionError::Filter, "tier=a"),
            ("p95>3", ConditionError::Unit, "3"),
            ("p95 > 0.3", ConditionError::Unit, "0.3"),
            ("p95>3%", ConditionError::Value, "3%"),
            ("errors>3ms", ConditionError::Value, "3ms"),
            ("p95>fast", ConditionError::Value, "fast"),
            ("error_rate>1", ConditionError::Share, "1"),
            ("error_rate>=1.5", ConditionError::Share, "1.5"),
            ("achieved_ratio < 99", ConditionError::Share, "99"),
        ] {
            assert_eq!(
                text.parse::<Condition>(),
                Err(reason(part.to_owned())),
                "{text}"
            );
        }
        let condition: Condition = "p95{tier=gold}>1s".parse().expect("a condition");
        assert_eq!(
            condition.check(&["free".into()]),
            Err(ConditionError::Tier("gold".into()))
        );
    }

    #[test]
    fn the_examples_of_the_help_are_conditions() {
        let examples = HELP.lines().nth(2).expect("a line of examples");
        for example in examples.split_whitespace() {
            assert!(example.parse::<Condition>().is_ok(), "{example}");
        }
        for text in [
            "p99.9>1s",
            "achieved_ratio<1",
            "error_rate>=1",
            "error_rate>1%",
        ] {
            assert!(text.parse::<Condition>().is_ok(), "{text}");
        }
    }
}
