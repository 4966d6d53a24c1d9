//! Every rejection, its status, its problem document, and whether its connection survives.

use super::*;
use crate::http::routes::Service;

const UNAVAILABLE: [UnavailableReason; 5] = [
    UnavailableReason::NoGpu,
    UnavailableReason::GpuFailed("it is gone"),
    UnavailableReason::Draining,
    UnavailableReason::Connections,
    UnavailableReason::Memory,
];

/// What a [`Rejection::Shed`] can be for; the others have a rejection of their own.
fn of_shed() -> impl Iterator<Item = ShedReason> {
    let all = ShedReason::ALL.iter().copied();
    all.filter(|reason| {
        !matches!(
            reason,
            ShedReason::DeadlineTooShort | ShedReason::NoGpu | ShedReason::Draining
        )
    })
}

fn too_short_for(batch_us: u64, deadline_us: u64) -> Rejection {
    Rejection::DeadlineTooShort {
        tier: Tier::Paid,
        deadline: Duration::from_micros(deadline_us),
        batch_time: Duration::from_micros(batch_us),
    }
}

fn problem_of(rejection: &Rejection) -> serde_json::Value {
    let mut out = Vec::new();
    rejection.write_problem("r", &mut out);
    serde_json::from_slice(&out).expect("valid JSON")
}

fn one_of_each() -> Vec<Rejection> {
    let mut all = vec![
        Rejection::Malformed("bad line"),
        Rejection::Header {
            name: "Host",
            problem: "twice".into(),
        },
        Rejection::UnknownTier("platinum".into()),
        Rejection::Json {
            problem: "oops".into(),
            line: 1,
            column: 2,
        },
        Rejection::Unauthorized,
        Rejection::NoRoute,
        Rejection::UnknownModel {
            asked: "nope".into(),
            serving: "llm-v1".into(),
        },
        Rejection::MethodNotAllowed { allow: "POST" },
        Rejection::RequestTimeout(Duration::from_secs(10)),
        Rejection::BodyTooLarge { limit_bytes: 1 },
        Rejection::InputTooLarge { limit_bytes: 1 },
        Rejection::TargetTooLong { limit_bytes: 1 },
        Rejection::NotJson,
        Rejection::Expectation,
        Rejection::InputRejected("too rude".into()),
        Rejection::OtherBatch("b-1".into()),
        Rejection::BatchTooLarge { limit: 100 },
        Rejection::BatchRaised("ValueError".into()),
        Rejection::BatchLost("the GPU failed"),
        Rejection::Unavailable {
            reason: UnavailableReason::Busy,
            retry_after: Duration::from_millis(50),
        },
        Rejection::HeadersTooLarge {
            limit_bytes: 1,
            limit_count: 1,
        },
        Rejection::Internal,
        Rejection::OutputTooLarge { limit_bytes: 1 },
        Rejection::TransferCoding,
        Rejection::draining(),
        Rejection::DeadlinePassed,
        Rejection::Version,
        too_short_for(100_000, 50_000),
    ];
    all.extend(UNAVAILABLE.map(|reason| Rejection::Unavailable {
        reason,
        retry_after: Duration::from_secs(1),
    }));
    all.extend(of_shed().map(|reason| Rejection::Shed {
        reason,
        tier: Tier::Free,
        retry_after: Duration::from_millis(1_200),
    }));
    all
}

#[test]
fn every_rejection_gives_a_whole_problem_document() {
    for rejection in one_of_each() {
        let mut out = Vec::new();
        rejection.write_problem("req_\"1\"", &mut out);
        let problem: serde_json::Value = serde_json::from_slice(&out).expect("valid JSON");
        assert_eq!(problem["status"], rejection.status());
        assert_eq!(problem["request_id"], "req_\"1\"");
        assert_ne!(problem["title"], "Unknown", "{rejection:?}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
        let kind = problem["type"].as_str().unwrap();
        assert!(kind.starts_with("urn:funicular:problem:"), "{kind}");
        assert_eq!(
            problem.get("retry_after_ms").is_some(),
            rejection.retry_after().is_some()
        );
    }
}

#[test]
fn a_shed_request_learns_its_tier_the_reason_and_when_to_come_back() {
    let shed = Rejection::Shed {
        reason: ShedReason::ZoneRed,
        tier: Tier::Paid,
        retry_after: Duration::from_micros(1_200_100),
    };
    let mut out = Vec::new();
    shed.write_problem("r", &mut out);
    let problem: serde_json::Value = serde_json::from_slice(&out).expect("valid JSON");
    assert_eq!(problem["tier"], "paid");
    assert_eq!(problem["reason"], "zone_red");
    assert_eq!(problem["retry_after_ms"], 1_201);
    assert_eq!(shed.retry_after_seconds(), Some(2));
    assert!(!shed.closes());
}

#[test]
fn whoever_can_never_be_answered_in_time_is_not_told_to_come_back() {
    let never = too_short_for(100_000, 50_000);
    let problem = problem_of(&never);
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["reason"], "deadline_too_short");
    assert_eq!(problem["tier"], "paid");
    assert_eq!(problem["retry_after_ms"], serde_json::Value::Null);
    assert_eq!(never.retry_after_seconds(), None);
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("an answer takes about 100 ms and the request allows 50 ms: allow more"),
        "{detail}"
    );
    let barely = too_short_for(100_001, 100_000).to_string();
    assert!(
        barely.contains("101 ms and the request allows 100 ms"),
        "{barely}"
    );
    let tiny = too_short_for(1_000, 300).to_string();
    assert!(
        tiny.contains("about 1 ms and the request allows 0.3 ms"),
        "{tiny}"
    );
}

/// Whether only a worker says so.
fn is_of_a_worker(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::OtherBatch(_)
        | Rejection::BatchTooLarge { .. }
        | Rejection::BatchRaised(_)
        | Rejection::BatchLost(_) => true,
        Rejection::Unavailable { reason, .. } => *reason == UnavailableReason::Busy,
        _ => false,
    }
}

/// One of each that a server or, with all that a server has, a worker says.
fn one_of_each_of(service: Service) -> Vec<Rejection> {
    let mut all = one_of_each();
    all.retain(|rejection| service == Service::Batches || !is_of_a_worker(rejection));
    all
}

fn document_of(service: Service) -> serde_json::Value {
    serde_json::from_str(service.openapi()).expect("valid JSON")
}

/// The distinct values of one member over all problems, sorted.
fn values_of(service: Service, member: &str) -> Vec<String> {
    let problems = one_of_each_of(service);
    let values = problems.iter().map(problem_of);
    let texts = values.filter_map(|problem| Some(problem[member].as_str()?.to_owned()));
    let distinct: std::collections::BTreeSet<String> = texts.collect();
    distinct.into_iter().collect()
}

#[test]
fn the_openapi_documents_list_every_type_reason_and_tier_of_a_problem() {
    lists_every_word(Service::Inputs);
    lists_every_word(Service::Batches);
}

fn lists_every_word(service: Service) {
    let document = document_of(service);
    let members = &document["components"]["schemas"]["Problem"]["properties"];
    let listed = |member: &str| {
        let words = members[member]["enum"].as_array().expect("an enum");
        let mut words: Vec<String> = words
            .iter()
            .map(|word| word.as_str().expect("text").to_owned())
            .collect();
        words.sort();
        words
    };
    assert_eq!(listed("type"), values_of(service, "type"));
    assert_eq!(listed("reason"), values_of(service, "reason"));
    let mut tiers = Tier::ALL.map(|tier| tier.name().to_owned());
    tiers.sort();
    assert_eq!(listed("tier"), tiers);
    // Every word that is counted is one that callers may read.
    for reason in ShedReason::ALL {
        assert!(
            listed("reason").contains(&reason.name().to_owned()),
            "{reason:?}"
        );
    }
}

#[test]
fn the_openapi_documents_and_the_readme_know_every_status() {
    let document = document_of(Service::Inputs);
    let responses = &document["paths"]["/v1/inference"]["post"]["responses"];
    let of_worker = document_of(Service::Batches);
    let of_worker = &of_worker["paths"]["/internal/batch"]["post"]["responses"];
    for rejection in one_of_each().iter().filter(|one| is_of_a_worker(one)) {
        assert!(of_worker[rejection.status().to_string()].is_object());
    }
    let readme = include_str!("../../README.md");
    let (_, table) = readme.split_once("| status |").expect("a table");
    let (table, _) = table.split_once("\n\n").expect("that ends");
    for rejection in one_of_each_of(Service::Inputs) {
        let status = rejection.status().to_string();
        // What takes POST alone answers no POST with 405.
        assert!(
            status == "405" || responses[&status].is_object(),
            "{status}"
        );
        assert!(table.contains(&status), "{status} is missing in the README");
    }
}

#[test]
fn retry_after_is_never_zero_seconds() {
    let shed = Rejection::Shed {
        reason: ShedReason::Limit,
        tier: Tier::Free,
        retry_after: Duration::ZERO,
    };
    assert_eq!(shed.retry_after_seconds(), Some(1));
}

#[test]
fn details_name_what_was_asked_for() {
    let wrong = Rejection::UnknownModel {
        asked: "nope".into(),
        serving: "llm-v1".into(),
    };
    assert_eq!(
        wrong.to_string(),
        "there is no model \"nope\" here; this server serves \"llm-v1\""
    );
    assert!(
        Rejection::UnknownTier("x".into())
            .to_string()
            .contains("tier")
    );
}
