//! A request as the handler sees it: what its head says ([`Call`]) and what is to be done ([`Work`]). Pure.
//!
//! [`Call::new`] reads all that matters out of a parsed head, so that the bytes it came in can be let go of while the
//! body is still on its way. [`Call::work`] judges the body once it is there.

use std::sync::Arc;
use std::time::Duration;

use super::Terms;
use super::batch::{self, BatchCall};
use super::inference;
use super::parse::Head;
use super::reject::Rejection;
use super::routes::Route;
use super::values::ContentType;
use crate::keys::Key;
use crate::ticket::Input;
use crate::tier::Tier;

/// What the head of a request says, in its own memory.
#[derive(Debug)]
pub struct Call {
    /// The caller's id, or the one that the server made up.
    pub request_id: Arc<str>,
    /// Its tier.
    pub tier: Tier,
    /// The key it was sent with, where callers need one.
    pub key: Option<Arc<Key>>,
    /// How long the caller waits for an answer, if it says so.
    pub timeout: Option<Duration>,
    /// Whether the connection may survive the answer, as far as the caller is concerned.
    pub keep_alive: bool,
    /// Whether an HTTP/1.0 caller has to be told that it does.
    pub says_keep_alive: bool,
    /// Whether the body of the answer is left out.
    pub head_only: bool,
    /// Where it goes, or why it is refused whatever its body says.
    pub route: Result<Route, Rejection>,
}

/// What a sound request asks for.
#[derive(Debug, PartialEq)]
pub enum Work {
    /// One input for the batch function.
    Infer(Input),
    /// A batch that was made elsewhere.
    Run(Box<BatchCall>),
    /// One of the routes that are answered on the spot.
    Show(Route),
}

impl Work {
    /// Bytes that it keeps until it is done.
    pub fn held_bytes(&self) -> usize {
        match self {
            Work::Infer(input) => input.held_bytes(),
            Work::Run(batch) => batch.held_bytes(),
            Work::Show(_) => 0,
        }
    }
}

/// A complete request.
#[derive(Debug)]
pub struct Request {
    /// What its head says. Boxed: a connection holds it on its stack for as long as it waits.
    pub call: Box<Call>,
    /// What is to be done, or what is wrong with it.
    pub work: Result<Work, Rejection>,
}

impl Call {
    /// Reads a head. `fresh_id` makes an id for callers that do not send one.
    #[inline(never)]
    pub fn new(head: &Head<'_>, terms: &Terms, fresh_id: impl FnOnce() -> Arc<str>) -> Call {
        let (route, tier, key) =
            match route(head, terms).and_then(|route| identify(route, head, terms)) {
                Ok((route, tier, key)) => (Ok(route), tier, key),
                Err(rejection) => (Err(rejection), terms.default_tier, None),
            };
        Call {
            request_id: head.request_id.map_or_else(fresh_id, Into::into),
            tier,
            key,
            timeout: head.timeout,
            keep_alive: head.keep_alive,
            says_keep_alive: head.minor_version == 0,
            head_only: head.method == "HEAD",
            route,
        }
    }

    /// A request whose head could not be read.
    pub fn unreadable(terms: &Terms, request_id: Arc<str>) -> Call {
        Call {
            request_id,
            tier: terms.default_tier,
            key: None,
            timeout: None,
            keep_alive: false,
            says_keep_alive: false,
            head_only: false,
            route: Err(Rejection::NoRoute),
        }
    }

    /// Whether the body matters at all.
    pub fn wants_body(&self) -> bool {
        self.route.as_ref().is_ok_and(|route| route.takes_body())
    }

    /// Judges the request with its whole body.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with it: first the head's own fault, then the body's.
    pub fn work(&self, body: &[u8], terms: &Terms) -> Result<Work, Rejection> {
        match self.route.clone()? {
            Route::Inference => read_input(body, terms, &self.request_id).map(Work::Infer),
            Route::Batch => batch::parse_body(body, terms).map(|batch| Work::Run(Box::new(batch))),
            route => Ok(Work::Show(route)),
        }
    }
}

fn route(head: &Head<'_>, terms: &Terms) -> Result<Route, Rejection> {
    let route = Route::find(terms.service(), head.method, head.path)?;
    if let Some(fault) = &head.fault {
        return Err(fault.clone());
    }
    if route.takes_body() && head.content_type == ContentType::Other {
        return Err(Rejection::NotJson);
    }
    Ok(route)
}

/// Who sent it: by its key where keys are required, else by what `X-Tier` says. The other routes are open to all.
fn identify(
    route: Route,
    head: &Head<'_>,
    terms: &Terms,
) -> Result<(Route, Tier, Option<Arc<Key>>), Rejection> {
    if route == Route::Batch {
        // What a server sends is of all tiers, and the tiers were its business.
        let secret = terms
            .worker
            .as_ref()
            .and_then(|worker| worker.secret.as_ref());
        return match secret {
            Some(secret) if !head.bearer.is_some_and(|bearer| secret.is(bearer)) => {
                Err(Rejection::Unauthorized)
            }
            _ => Ok((route, terms.default_tier, None)),
        };
    }
    if route != Route::Inference {
        return Ok((route, terms.default_tier, None));
    }
    let Some(keys) = &terms.keys else {
        return match &head.tier_fault {
            Some(fault) => Err(fault.clone()),
            None => Ok((route, head.tier.unwrap_or(terms.default_tier), None)),
        };
    };
    let key = head
        .bearer
        .and_then(|bearer| keys.lookup(bearer))
        .ok_or(Rejection::Unauthorized)?;
    Ok((route, key.tier(), Some(key)))
}

#[inline(never)]
fn read_input(body: &[u8], terms: &Terms, id: &Arc<str>) -> Result<Input, Rejection> {
    let request = inference::parse_body(body, terms.limits.input_bytes_max)?;
    match request.model {
        Some(asked) if *asked != *terms.model => Err(unknown_model(&asked, &terms.model)),
        _ => Ok(Input {
            text: Arc::from(&*request.input),
            parameters: request.parameters.map(Arc::from),
            request_id: Some(Arc::clone(id)),
        }),
    }
}

#[cold]
fn unknown_model(asked: &str, serving: &str) -> Rejection {
    Rejection::UnknownModel {
        asked: asked.chars().take(100).collect(),
        serving: serving.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse::parse_head;

    fn call(text: &str) -> Call {
        let terms = Terms::default();
        let head = parse_head(text.as_bytes(), &terms.limits)
            .expect("accepted")
            .expect("complete");
        Call::new(&head, &terms, || "fresh".into())
    }

    fn post(lines: &str) -> Call {
        call(&format!(
            "POST /v1/inference HTTP/1.1\r\nHost: a\r\n{lines}\r\n"
        ))
    }

    #[test]
    fn what_the_head_leaves_open_comes_from_the_terms() {
        let terms = Terms::default();
        let plain = post("");
        assert_eq!(
            (&*plain.request_id, plain.tier),
            ("fresh", terms.default_tier)
        );
        assert_eq!(plain.timeout, None);
        let all = post("X-Request-Id: r\r\nX-Tier: paid\r\nX-Request-Timeout-Ms: 5\r\n");
        assert_eq!((&*all.request_id, all.tier), ("r", Tier::Paid));
        assert_eq!(all.timeout, Some(Duration::from_millis(5)));
        assert_eq!(&*post("X-Request-Id: no spaces\r\n").request_id, "fresh");
    }

    #[test]
    fn the_head_is_judged_before_the_body() {
        let terms = Terms::default();
        let verdict = |lines: &str| post(lines).work(b"not JSON", &terms).expect_err("refused");
        assert_eq!(verdict("Content-Type: text/plain\r\n"), Rejection::NotJson);
        assert_eq!(verdict("Expect: a-miracle\r\n"), Rejection::Expectation);
        assert_eq!(verdict("X-Tier: gold\r\n").status(), 400);
        assert!(matches!(verdict(""), Rejection::Json { .. }));
        assert!(post("").wants_body());
        assert!(!post("X-Tier: gold\r\n").wants_body());
    }

    #[test]
    fn an_input_and_its_parameters_become_work() {
        let terms = Terms::default();
        let body = br#"{"input":"a\nb","model":"llm-v1","parameters":{"x":[1]}}"#;
        let Ok(Work::Infer(input)) = post("").work(body, &terms) else {
            panic!("accepted");
        };
        assert_eq!(&*input.text, "a\nb");
        assert_eq!(input.parameters.as_deref(), Some("{\"x\":[1]}"));
        assert_eq!(input.request_id.as_deref(), Some("fresh"));
    }

    #[test]
    fn another_model_is_not_found() {
        let terms = Terms::default();
        let rejection = post("")
            .work(br#"{"input":"","model":"nope"}"#, &terms)
            .expect_err("refused");
        assert_eq!(rejection.status(), 404);
        assert!(rejection.to_string().contains("nope"));
    }

    #[test]
    fn the_other_routes_ignore_their_body() {
        let live = call("GET /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Type: x/y\r\n\r\n");
        assert_eq!(
            live.work(b"whatever", &Terms::default()),
            Ok(Work::Show(Route::Live))
        );
        assert!(call("HEAD / HTTP/1.0\r\n\r\n").head_only);
    }
}
