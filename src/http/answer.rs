//! What becomes of a request, and how it is told to the caller. Pure but for the log line of a bug.

use std::sync::Arc;

use super::core::{Core, Scratch};
use super::inference::{InferenceReply, count_tokens};
use super::reject::{Rejection, ShedReason, UnavailableReason};
use super::request::Call;
use super::respond::{self, Envelope, Persistence};
use super::routes::{OPENAPI, Route};
use crate::clock::Time;
use crate::ticket::{Failure, Output, Timeline};

/// What became of a request.
pub enum Outcome {
    /// There is an output.
    Inferred(Box<Inferred>),
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
        Route::OpenApi => ("application/json", OPENAPI),
        Route::Welcome | Route::Inference => ("text/plain; charset=utf-8", &core.shared.welcome),
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

/// What the caller sees of a failure after admission.
pub fn rejection_of(failure: Failure, call: &Call) -> Rejection {
    match failure {
        Failure::Shed { retry_after } => Rejection::Shed {
            reason: ShedReason::Infeasible,
            tier: call.tier,
            retry_after,
        },
        Failure::Unavailable { why, retry_after } => Rejection::Unavailable {
            reason: UnavailableReason::GpuFailed(why),
            retry_after,
        },
        Failure::Rejected(detail) => Rejection::InputRejected(detail.into()),
        Failure::OutputTooLarge(limit_bytes) => Rejection::OutputTooLarge { limit_bytes },
        Failure::Draining => Rejection::draining(),
        Failure::Dropped => Rejection::Internal,
    }
}
