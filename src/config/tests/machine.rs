//! Limits that follow from the machine: connections, memory for requests, cores.

use super::*;

#[test]
fn connections_left_to_the_server_are_lowered_and_named_ones_refused() {
    let small = Machine {
        open_files: 1_024,
        ..machine()
    };
    let lowered = resolve_on(&small, "", &[]).expect("auto fits");
    assert_eq!(lowered.http.max_connections, 832);
    assert_eq!(
        lowered.warnings,
        [
            "only 832 connections instead of 20,000 (ulimit -n is 1,024, of which 192 are for other uses): raise that limit"
        ]
    );
    assert_eq!(lowered.open_files_needed(), 1_024);

    let narrow = Machine {
        address_space_bytes: 1 << 30,
        ..machine()
    };
    let lowered = resolve_on(&narrow, "gpus = 4\ncores = 1", &[]).expect("auto fits");
    assert!(lowered.http.max_connections < 20_000);
    let warning = &lowered.warnings[0];
    assert!(
        warning.contains("(ulimit -v is 1 GiB, of which 910 MiB are for other uses)"),
        "{warning}"
    );

    let on = |connections| Machine {
        open_files: connections + 192,
        ..machine()
    };
    for (connections, warnings) in [(19_888, 0), (18_000, 0), (17_999, 1)] {
        let config = resolve_on(&on(connections), "", &[]).expect("auto fits");
        assert_eq!(config.http.max_connections as u64, connections);
        assert_eq!(config.warnings.len(), warnings, "{connections}");
    }

    let exact = resolve_on(&small, "max_connections = 832", &[]).expect("832 fit");
    assert_eq!((exact.http.max_connections, exact.warnings.len()), (832, 0));
    let refused = resolve_on(&small, "", &["--max-connections", "833"]).expect_err("too many");
    assert_eq!(
        refused.to_string(),
        "--max-connections: max_connections is 833; it must be from 1 to 832 here \
         (ulimit -n is 1,024, of which 192 are for other uses), or auto"
    );
    assert!(resolve_on(&small, "max_connections = 0", &[]).is_err());
    assert!(resolve_on(&small, "max_connections = -5", &[]).is_err());
    assert!(refusal("max_connections = 30001", &[]).contains("the most that one server takes"));

    let tiny = Machine {
        open_files: 64,
        ..machine()
    };
    let refused = resolve_on(&tiny, "", &[]).expect_err("no room");
    assert!(
        refused
            .to_string()
            .starts_with("this machine: max_connections can't even be 1")
    );
}

#[test]
fn request_memory_follows_the_machine_or_is_taken_or_refused() {
    let memory = |text: &str| {
        let config = resolve(text, &[]).expect("sound");
        config.http.limits.request_memory_bytes
    };
    assert_eq!(memory(""), 4 << 30);
    assert_eq!(memory("[limits]\nrequest_memory_mib = 1"), 1 << 20);
    let refused = refusal(
        "[limits]\nrequest_memory_mib = 3\nbody_max_bytes = 4000000",
        &[],
    );
    assert!(
        refused.ends_with(
            "limits.request_memory_mib is 3; it must be from 4 (one body may have 3.8 MiB) to 1,048,576, or auto"
        ),
        "{refused}"
    );
    assert!(refusal("", &["--request-memory-mib", "-1"]).contains("--request-memory-mib"));
}

#[test]
fn cores_are_compared_with_those_of_the_machine() {
    assert_eq!(resolve("", &[]).expect("auto").cores, [0, 1, 2, 5]);
    assert_eq!(resolve("cores = 2", &[]).expect("a count").cores, [0, 1]);
    assert_eq!(
        resolve("", &["--cores", "2,5"]).expect("a list").cores,
        [2, 5]
    );
    let found = refusal("", &["--cores", "0-3"]);
    assert_eq!(
        found,
        "--cores: cores can't hold: this process may not run on core 3, only on 0-2,5"
    );
    assert!(refusal("cores = 0", &[]).starts_with("f.toml:1: cores can't hold: 0 cores"));
    let blind = Machine {
        cores: Vec::new(),
        ..machine()
    };
    let refused = resolve_on(&blind, "", &[]).expect_err("no cores");
    assert!(
        refused
            .to_string()
            .starts_with("this machine: cores can't hold: can't tell")
    );
}
