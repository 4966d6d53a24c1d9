//! What becomes of a request, and how it is told to the caller. Pure but for the log line of a bug.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, Scratch};
use super::inference::InferenceReply;
use super::reject::{Rejection, ShedReason, UnavailableReason};
use super::request::Call;
use super::respond::{self, Envelope, Persistence};
use super::routes::Route;
use super::tokens::count_tokens;
use crate::clock::Time;
use crate::metrics::{Abandonment, Recorder, Stage};
use crate::ticket::{Failure, Output, Timeline};
use crate::tier::Tier;

/// What became of a request.
pub enum Outcome {
    /// There is an output.
    Inferred(Box<Inferred>),
    /// The answer to a batch, as it is kept for whoever asks again.
    Ran(Arc<[u8]>),
    /// One of the routes that are answered on the spot.
    Shown(Route),
    /// There is an error to tell.
    Refused(Rejection),
    /// The caller left first: there is nobody to answer.
    Gone,
}

/// One input's output.
pub struct Inferred {
    /// The input.
    pub input: Arc<str>,
    /// Its output.
    pub output: Output,
    /// When things happened on the way.
    pub timeline: Timeline,
    /// When the request had arrived in full.
    pub arrived: Time,
}

/// Writes the whole response into the core's output buffer.
#[inline(never)]
pub fn compose(
    scratch: &mut Scratch,
    core: &Core,
    call: &Call,
    outcome: &Outcome,
    persistence: Persistence,
    now: Time,
) {
    let Scratch {
        out, body, date, ..
    } = scratch;
    out.clear();
    body.clear();
    let envelope = Envelope {
        request_id: &call.request_id,
        persistence,
        head_only: call.head_only,
    };
    let date = date.at(now);
    match outcome {
        Outcome::Inferred(inferred) => {
            inferred.write(&call.request_id, now, body);
            respond::write_ok(out, &envelope, date, "application/json", body);
        }
        Outcome::Ran(results) => {
            respond::write_ok(out, &envelope, date, "application/json", results);
        }
        Outcome::Shown(route) => {
            let (content_type, text) = shown(*route, core);
            respond::write_ok(out, &envelope, date, content_type, text.as_bytes());
        }
        Outcome::Refused(rejection) => {
            if *rejection == Rejection::Internal {
                log::error!("request {} failed by a bug of ours", call.request_id);
            }
            respond::write_rejection(out, &envelope, date, rejection, body);
        }
        Outcome::Gone => {}
    }
}

fn shown(route: Route, core: &Core) -> (&'static str, &str) {
    match route {
        Route::Live => ("application/json", "{\"live\":true}"),
        Route::Ready => ("application/json", "{\"ready\":true}"),
        Route::OpenApi => ("application/json", core.shared.terms.service().openapi()),
        Route::Welcome | Route::Inference | Route::Batch => {
            ("text/plain; charset=utf-8", &core.shared.welcome)
        }
    }
}

impl Inferred {
    fn write(&self, request_id: &str, now: Time, body: &mut Vec<u8>) {
        let count = || count_tokens(&self.input) + count_tokens(&self.output.text);
        let reply = InferenceReply {
            request_id,
            output: &self.output.text,
            latency: now.since(self.arrived),
            queue_wait: self.timeline.launched.since(self.arrived),
            tokens_used: self.output.tokens.unwrap_or_else(count),
        };
        reply.write(body);
    }
}

impl Inferred {
    /// Records the ticket's time line, each stretch from where the last one ended, so that they add up.
    pub fn record(&self, recorder: &Recorder, tier: Tier, now: Time) {
        record_timeline(&self.timeline, self.arrived, recorder, tier, now);
    }
}

/// Records the stretches of one ticket's time line.
pub fn record_timeline(
    timeline: &Timeline,
    arrived: Time,
    recorder: &Recorder,
    tier: Tier,
    now: Time,
) {
    let Timeline {
        hold_from,
        bound,
        launched,
        finished,
        ..
    } = *timeline;
    recorder.queue_wait(tier, bound.since(arrived));
    recorder.stage(Stage::Queue, hold_from.since(arrived));
    recorder.stage(Stage::Hold, bound.since(hold_from));
    recorder.stage(Stage::Stage, launched.since(bound));
    recorder.stage(Stage::Execute, finished.since(launched));
    recorder.stage(Stage::Demux, now.since(finished));
}

/// How a failure after admission counts, unless whoever failed the ticket has counted it.
pub fn abandonment_of(failure: &Failure) -> Option<Abandonment> {
    match failure {
        Failure::NoGpu => Some(Abandonment::NoGpu),
        Failure::Draining => Some(Abandonment::Drained),
        Failure::Dropped => Some(Abandonment::Dropped),
        Failure::Shed { .. }
        | Failure::Unavailable { .. }
        | Failure::Rejected(_)
        | Failure::Raised(_)
        | Failure::OutputTooLarge(_) => None,
    }
}

/// What the caller sees of a failure after admission.
pub fn rejection_of(failure: Failure, call: &Call) -> Rejection {
    match failure {
        Failure::Shed { retry_after } => Rejection::Shed {
            reason: ShedReason::Rejudged,
            tier: call.tier,
            retry_after,
        },
        Failure::Unavailable { why, retry_after } => Rejection::Unavailable {
            reason: UnavailableReason::GpuFailed(why),
            retry_after,
        },
        Failure::NoGpu => Rejection::Unavailable {
            reason: UnavailableReason::NoGpu,
            retry_after: Duration::from_secs(1),
        },
        Failure::Rejected(detail) => Rejection::InputRejected(detail.into()),
        Failure::Raised(detail) => Rejection::BatchRaised(detail.into()),
        Failure::OutputTooLarge(limit_bytes) => Rejection::OutputTooLarge { limit_bytes },
        Failure::Draining => Rejection::draining(),
        Failure::Dropped => Rejection::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Terms;

    fn call() -> Call {
        Call::unreadable(&Terms::default(), "r".into())
    }

    #[test]
    fn every_failure_after_admission_has_its_status() {
        let retry_after = Duration::from_millis(1);
        let why = "the GPU is gone";
        for (failure, status, detail) in [
            (Failure::Shed { retry_after }, 429, "in time"),
            (Failure::Unavailable { why, retry_after }, 503, why),
            (Failure::NoGpu, 503, "healthy"),
            (Failure::Rejected("too rude".into()), 422, "too rude"),
            (Failure::OutputTooLarge(7), 500, "7 bytes"),
            (Failure::Draining, 503, "shutting down"),
            (Failure::Dropped, 500, "request id"),
        ] {
            let rejection = rejection_of(failure, &call());
            assert_eq!(rejection.status(), status);
            let text = rejection.to_string();
            assert!(text.contains(detail), "{text}");
        }
    }

    fn answered(tokens: Option<u64>) -> serde_json::Value {
        let inferred = Inferred {
            input: "What is the capital of France?".into(),
            output: Output {
                text: "The capital of France is Paris.".into(),
                tokens,
            },
            timeline: Timeline {
                launched: Time::from_millis_f64(11.0),
                ..Timeline::default()
            },
            arrived: Time::from_millis_f64(10.0),
        };
        let mut body = Vec::new();
        inferred.write("r", Time::from_millis_f64(112.0), &mut body);
        serde_json::from_slice(&body).expect("valid JSON")
    }

    #[test]
    fn tokens_are_counted_unless_the_executor_did() {
        assert_eq!(answered(None)["metadata"]["tokens_used"], 14);
        assert_eq!(answered(Some(3))["metadata"]["tokens_used"], 3);
    }

    #[test]
    fn times_are_reckoned_from_the_arrival() {
        let metadata = &answered(None)["metadata"];
        assert_eq!(metadata["latency_ms"], 102.0);
        assert_eq!(metadata["queue_wait_ms"], 1.0);
    }
}
